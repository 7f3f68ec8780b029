"""A run: which cases in which worlds, one world after the other."""

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass

from routeproof_spec import AnyCase, Case, Finding, Topology, Verdict
from routeproof_spec.rules import RULES

from routeproof_conformance.parallel import collect, preflight, run_simulated
from routeproof_conformance.runner import Run, Runner
from routeproof_conformance.worlds.available import availability
from routeproof_conformance.worlds.processes import TIMEOUT_SECONDS, ProcessWorld

REAL_TOPOLOGIES = tuple(Topology.parse(name) for name in ("tp2", "tp4", "tp2dp2", "dp2"))
"""What real ranks run unless topologies are named."""


@dataclass(frozen=True)
class Plan:
    """What is to be run, and how."""

    cases: tuple[AnyCase, ...]
    worlds: tuple[str, ...] = ("simulated",)
    named_topologies: bool = False
    """Whether the topologies were asked for by name; else real ranks run a few."""
    jobs: int = 1
    debug_rank: int | None = None
    timeout: float = TIMEOUT_SECONDS

    def cases_of(self, world: str) -> tuple[AnyCase, ...]:
        """Give the cases of a world; a scenario has no ranks that run, so it is asked once, simulated."""
        return self.cases if world == "simulated" else self.real_cases

    @property
    def real_cases(self) -> tuple[Case, ...]:
        """The cases that real ranks run."""
        return tuple(
            case
            for case in self.cases
            if isinstance(case, Case)
            and case.device == "cpu"
            and (self.named_topologies or case.topology in REAL_TOPOLOGIES)
        )

    @property
    def total(self) -> int:
        """Cases, counted once per world."""
        return sum(len(self.cases_of(world)) for world in self.worlds)


def run_worlds(run: Run, plan: Plan) -> Iterator[tuple[AnyCase, list[Finding]]]:
    """Run a plan and add the findings to `run`, giving each case as it comes.

    Real ranks are forked first, before this process has threads or torch has computed. A
    world that cannot run here gives *skipped* findings that say why.
    """
    with ExitStack() as stack:
        worlds: dict[str, ProcessWorld | str] = {}
        for name in plan.worlds:
            if name == "simulated" or not plan.cases_of(name):
                continue
            able = availability(name, max(case.topology.size for case in plan.cases_of(name)))
            if able.note:
                run.notes.append(f"{name}: {able.note}")
            worlds[name] = able.reason or stack.enter_context(
                closing(ProcessWorld(name, run.engine, plan.timeout))
            )
        preflight(run.engine)
        for name in plan.worlds:
            if name == "simulated":
                yield from run_simulated(run, plan.cases, plan.jobs, plan.debug_rank)
            elif name in worlds:
                yield from _run_real(run, plan.real_cases, name, worlds[name])
            if run.cut_short:
                return


def _run_real(
    run: Run, cases: tuple[Case, ...], name: str, world: ProcessWorld | str
) -> Iterator[tuple[AnyCase, list[Finding]]]:
    if isinstance(world, str):
        run.notes.append(f"{name}: not run: {world}")
        for case in cases:
            found = [_skipped(case, rule, name, world) for rule in case.rules]
            run.findings += found
            yield case, found
        return
    runner = Runner(run.engine, world)
    yield from collect(run, cases, (runner.run(case) for case in cases))
    if world.rebuilt:
        run.notes.append(f"{name}: {world.rebuilt} pools of ranks were lost and built anew")


def _skipped(case: Case, rule: str, world: str, why: str) -> Finding:
    return Finding(
        case=case.id,
        rule=rule,
        level=RULES[rule].level,
        world=world,
        topology=str(case.topology),
        verdict=Verdict.SKIPPED,
        message=f"world {world}: {why}",
    )
