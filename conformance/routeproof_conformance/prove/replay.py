"""From a counterexample to a case, and what the real class does with it."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from routeproof_reference import expected
from routeproof_reference.proofs.obligation import Counterexample, Result
from routeproof_reference.proofs.registry import BY_ID
from routeproof_spec import Call, CaptureConfig, Case, CaseStep, Layout, Topology, Verdict

from routeproof_conformance.cases.build import accepted, config, rejected, step
from routeproof_conformance.engines import load
from routeproof_conformance.engines.fetch import cache_root
from routeproof_conformance.judge import PREDICATES
from routeproof_conformance.prove.sglang import SglangTarget
from routeproof_conformance.prove.targets import target_of
from routeproof_conformance.runner import Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld


def rules_of(result: Result, found: Counterexample) -> tuple[str, ...]:
    """Give the rules of the claim that a counterexample refutes, as far as cases show them."""
    claim = re.search(r"\(([a-z-]+): ", found.said)
    known = BY_ID.get(claim[1]) if claim else None
    rules = (known or BY_ID[result.obligation]).rules
    return tuple(rule for rule in rules if rule in PREDICATES) or ("LAY-02",)


def case_of(result: Result, found: Counterexample) -> Case:
    """Turn numbers into a case: a full step if rows are in question, then the step of the numbers.

    All are emitted as the engine is deployed.
    """
    target = target_of(result.target)
    rules = rules_of(result, found)
    topology = Topology(tp=found.tp, dp=len(found.counts))
    layouts = frozenset(Layout(name) for name in found.layouts) or None
    settings: CaptureConfig = config(max_tokens=max(24, *found.counts), layouts=layouts)
    declared = Layout(found.declared) if found.declared else None
    usual = next(iter(target.layouts(topology.dp))) if target.deployed else Layout.FULL
    emitted = Layout(found.layout) if found.layout else usual

    def told(counts: tuple[int, ...], layout: Layout, **more: Any) -> CaseStep:  # noqa: ANN401
        real = target.real(counts) if isinstance(target, SglangTarget) else counts
        return step(topology, counts, layout, real, **more)

    calls = None
    if not found.layout:
        calls = tuple(Call(layer=layer, n=found.n) for layer in range(settings.layers))
    wrong = told(found.counts, emitted, calls=calls, shard_sizes=found.sizes, declared=declared)
    at = {"T": found.counts, "n": found.n}
    name = f"{rules[0]}/counterexample"
    first = () if rules[0] == "COL-02" else (told((settings.max_tokens,) * topology.dp, usual),)
    plain = accepted(name, topology, (*first, wrong), rules, settings=settings, at=at)
    if all(item.error is None for item in expected(plain)[-1]):
        return plain
    right = told(found.counts, usual)
    return rejected(name, topology, wrong, right, rules, settings=settings, before=first, at=at)


def confirm(result: Result, target: str) -> Result:
    """Replay a counterexample on the engine's real class; keep the case as a file."""
    found = result.counterexample
    if found is None or found.n < 0:
        return result
    case, engine = case_of(result, found), target.partition(" ")[0]
    judged = Runner(load(engine), SimulatedWorld()).run(case)
    failed = [item for item in judged if item.verdict in (Verdict.FAILED, Verdict.ERROR)]
    path = folder() / f"{re.sub(r'[^A-Za-z0-9.]+', '-', f'{target} {result.obligation}')}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(case.model_dump_json(indent=1) + "\n", "utf-8")
    said = "; ".join(f"{item.verdict} {item.rule}: {item.message.splitlines()[0]}" for item in failed)
    rules = rules_of(result, found)
    if not any(item.rule in rules for item in failed):
        kept = f"the real class keeps {', '.join(rules)} in this case"
        said = f"{kept} ({said})" if said else kept
    command = f"routeproof run --engine {engine} --case {path}"
    return replace(result, confirmed=said, replay=command)


def folder() -> Path:
    """Give where counterexamples are kept."""
    return cache_root().parent / "counterexamples"


def read_case(path: Path) -> Case:
    """Read a case from a file; raise ValueError where it is none."""
    return Case.model_validate_json(path.read_text("utf-8"))
