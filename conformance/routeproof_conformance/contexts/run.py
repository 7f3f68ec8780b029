"""Asking an engine's other surfaces, and judging what they say."""

from collections.abc import Callable
from traceback import extract_tb
from typing import cast

from routeproof_spec import Batch, EngineProfile, Finding, Scenario, Surface, Verdict
from routeproof_spec.rules import RULES

from routeproof_conformance.contexts.engine import ContextBuilder, Probe
from routeproof_conformance.contexts.judge import PREDICATES, Asked
from routeproof_conformance.contexts.source import ShapeError
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.judge.view import BROKEN, Outcome, failed


def run_scenario(engine: object, profile: EngineProfile, scenario: Scenario, world: str) -> list[Finding]:
    """Give one finding per rule of the scenario."""
    probe = getattr(engine, "probe", None)
    if scenario.surface not in profile.surfaces or probe is None:
        why = f"is shown at the surface {scenario.surface}"
        return [_finding(scenario, rule, world, Outcome(Verdict.UNSUPPORTED, why)) for rule in scenario.rules]
    found = []
    for rule in scenario.rules:
        refusal = _refusal(profile, scenario, rule)
        outcome = Outcome(Verdict.UNSUPPORTED, refusal) if refusal else _asked(scenario, rule, probe)
        found.append(_finding(scenario, rule, world, outcome))
    return found


def _asked(scenario: Scenario, rule: str, probe: Callable[[Surface], Probe]) -> Outcome:
    """Judge one rule; *skipped* where files are not at hand, *error* where they have another shape."""
    try:
        return _with_twin(scenario, rule, probe(scenario.surface))
    except ShapeError as error:
        return Outcome(Verdict.ERROR, str(error))
    except EngineError as error:
        return Outcome(Verdict.SKIPPED, str(error))
    except Exception as error:  # noqa: BLE001 - a stub or an adapter that broke
        return Outcome(Verdict.ERROR, f"broken adapter or stub: {type(error).__name__}: {error}")


def _refusal(profile: EngineProfile, scenario: Scenario, rule: str) -> str:
    """Say why a rule does not apply to the engine, if it does not."""
    need = (*scenario.capabilities, *filter(None, (RULES[rule].capability,)))
    lacking = [name for name in dict.fromkeys(need) if name not in profile.capabilities]
    if lacking:
        return f"needs the capabilities {', '.join(lacking)}"
    return f"declined: {profile.declined[rule]}" if rule in profile.declined else ""


def _with_twin(scenario: Scenario, rule: str, probe: Probe) -> Outcome:
    """Judge one rule. Where it fails, an accepted twin that does not pass either is what is reported."""
    outcome = _judge(scenario, rule, probe)
    if outcome.verdict is Verdict.FAILED and scenario.twin is not None:
        twin = _judge(scenario.twin, rule, probe)
        if twin.verdict not in (Verdict.PASSED, Verdict.UNSUPPORTED):
            return twin._replace(message=f"its accepted twin: {twin.message}")
    return outcome


def _judge(scenario: Scenario, rule: str, probe: Probe) -> Outcome:
    """Judge one rule without a twin; what the engine raises is a failure, what a stub raises an error."""
    if isinstance(scenario.given, Batch):
        builder = cast("ContextBuilder", probe)
        if scenario.given.path not in builder.paths:
            return Outcome(Verdict.UNSUPPORTED, f"no path {scenario.given.path} of the engine is driven")
        if scenario.given.emitted not in builder.layouts:
            return Outcome(Verdict.UNSUPPORTED, f"counts serve no layout {scenario.given.emitted} there")
        if rule == "LAY-07" and not builder.takes_mask:
            return Outcome(Verdict.UNSUPPORTED, "the context builder is handed no padding mask")
    try:
        outcome = PREDICATES[rule](Asked(scenario, probe))
    except EngineError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the engine's functions raise
        outcome = _raised(error, probe)
    if outcome.verdict in (Verdict.FAILED, Verdict.ERROR):
        return outcome._replace(message=f"{outcome.message}\n  {_inputs(scenario, probe)}")
    return outcome


def _raised(error: Exception, probe: Probe) -> Outcome:
    """Tell a refusal by the engine's own code from an adapter that broke."""
    text = f"{type(error).__name__}: {error}"
    frames = [frame.filename for frame in extract_tb(error.__traceback__)]
    inside = any(frame.endswith(file) for frame in frames for file in probe.digests)
    if not inside or BROKEN & {kind.__name__ for kind in type(error).__mro__}:
        return Outcome(Verdict.ERROR, f"broken adapter or stub: {text}")
    return failed(f"raised {text}")


def _inputs(scenario: Scenario, probe: Probe) -> str:
    """Tell what was put in, and into which files."""
    given = scenario.given.model_dump(exclude_defaults=True, mode="json", exclude={"kind"})
    told = ", ".join(f"{name} {value}" for name, value in given.items())
    files = "\n  ".join(f"{path} sha256 {digest}" for path, digest in probe.digests.items())
    return f"put in: {told}\n  driven: {files}"


def _finding(scenario: Scenario, rule: str, world: str, outcome: Outcome) -> Finding:
    return Finding(
        case=scenario.id,
        rule=rule,
        level=RULES[rule].level,
        world=world,
        topology=str(scenario.topology),
        verdict=outcome.verdict,
        message=outcome.message,
    )
