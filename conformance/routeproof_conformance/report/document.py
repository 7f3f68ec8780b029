"""The JSON report."""

import json

from routeproof_spec import SPEC_VERSION

from routeproof_conformance.runner import Run


def document(run: Run) -> str:
    """Give the report as one JSON document."""
    profile = run.engine.profile
    return json.dumps(
        {
            "engine": run.engine.name,
            "engine_version": profile.version,
            "engine_digest": profile.digest,
            "spec_version": SPEC_VERSION,
            "verdict": run.verdict,
            "cut_short": run.cut_short or None,
            "worlds": list(run.worlds),
            "notes": run.notes,
            "cases": run.cases,
            "counts": run.counts,
            "findings": [item.model_dump(mode="json") for item in run.findings],
        },
        indent=1,
    )
