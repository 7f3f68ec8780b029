"""From a counterexample to a case, and what the real class does with it."""

import re
from dataclasses import replace
from pathlib import Path

from routeproof_reference import expected
from routeproof_reference.proofs.obligation import Counterexample, Result
from routeproof_reference.proofs.registry import BY_ID
from routeproof_spec import Call, CaptureConfig, Case, Layout, Topology, Verdict

from routeproof_conformance.cases.build import accepted, config, filling, rejected, step
from routeproof_conformance.engines import load
from routeproof_conformance.engines.fetch import cache_root
from routeproof_conformance.judge import PREDICATES
from routeproof_conformance.runner import Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld


def case_of(result: Result, found: Counterexample) -> Case:
    """Turn numbers into a case: a full step, then the one in question."""
    claim = re.search(r"\(([a-z-]+): ", found.said)
    known = BY_ID.get(claim[1]) if claim else None
    rules = (known or BY_ID[result.obligation]).rules
    rules = tuple(rule for rule in rules if rule in PREDICATES) or ("LAY-02",)
    topology = Topology(tp=found.tp, dp=len(found.counts))
    layouts = frozenset(Layout(name) for name in found.layouts) or None
    settings: CaptureConfig = config(max_tokens=max(24, *found.counts), layouts=layouts)
    declared = Layout(found.declared) if found.declared else None
    emitted = Layout(found.layout) if found.layout else Layout.FULL
    calls = None
    if not found.layout:
        calls = tuple(Call(layer=layer, n=found.n) for layer in range(settings.layers))
    wrong = step(topology, found.counts, emitted, calls=calls, shard_sizes=found.sizes, declared=declared)
    at = {"T": found.counts, "n": found.n}
    name = f"{rules[0]}/counterexample"
    first = (filling(topology, settings.max_tokens),)
    plain = accepted(name, topology, (*first, wrong), rules, settings=settings, at=at)
    if all(item.error is None for item in expected(plain)[-1]):
        return plain
    right = step(topology, found.counts, Layout.FULL)
    return rejected(name, topology, wrong, right, rules, settings=settings, before=first, at=at)


def confirm(result: Result, engine: str) -> Result:
    """Replay a counterexample on the engine's real class; keep the case as a file."""
    found = result.counterexample
    if found is None or found.n < 0:
        return result
    case = case_of(result, found)
    judged = Runner(load(engine), SimulatedWorld()).run(case)
    failed = [item for item in judged if item.verdict in (Verdict.FAILED, Verdict.ERROR)]
    path = folder() / f"{re.sub(r'[^A-Za-z0-9.]+', '-', f'{engine} {result.obligation}')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(case.model_dump_json(indent=1) + "\n", "utf-8")
    said = "; ".join(f"{item.verdict} {item.rule}: {item.message.splitlines()[0]}" for item in failed)
    command = f"routeproof run --engine {engine} --case {path}"
    return replace(result, confirmed=said or "the real class passes this case", replay=command)


def folder() -> Path:
    """Give where counterexamples are kept."""
    return cache_root().parent / "counterexamples"


def read_case(path: Path) -> Case:
    """Read a case from a file; raise ValueError where it is none."""
    return Case.model_validate_json(path.read_text("utf-8"))
