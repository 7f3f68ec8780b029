"""Running cases in a world, and judging each."""

from collections import Counter
from dataclasses import dataclass, field

from routeproof_reference import expected, producers
from routeproof_spec import AnyCase, Case, Finding, Layout, Level, Scenario, Verdict
from routeproof_spec.rules import RULES

from routeproof_conformance.contexts.run import run_scenario
from routeproof_conformance.engine import Engine
from routeproof_conformance.engines import Loaded
from routeproof_conformance.judge import View, broken, finding, judge, rejections
from routeproof_conformance.judge.view import Outcome
from routeproof_conformance.worlds import World


@dataclass
class Run:
    """All findings of one engine."""

    engine: Loaded
    worlds: tuple[str, ...]
    findings: list[Finding] = field(default_factory=list)
    cases: int = 0
    """Cases that ran."""
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)
    """What a reader has to know of the worlds."""
    cut_short: str = ""
    """Why not all of them were run."""

    @property
    def counts(self) -> dict[str, int]:
        """Findings by verdict."""
        found = Counter(item.verdict for item in self.findings)
        return {verdict.value: found.get(verdict, 0) for verdict in Verdict}

    @property
    def verdict(self) -> str:
        """Say conformant, partial, non-conformant, error or nothing-ran."""
        verdicts = {item.verdict for item in self.findings}
        if Verdict.ERROR in verdicts:
            return "error"
        if any(fatal(item) for item in self.findings):
            return "non-conformant"
        if Verdict.PASSED not in verdicts:
            return "nothing-ran"
        partial = {Verdict.SKIPPED, Verdict.KNOWN_FAILURE} & {
            item.verdict for item in self.findings if item.level is not Level.SHOULD
        }
        return "partial" if partial or self.cut_short else "conformant"

    @property
    def exit_code(self) -> int:
        """0: nothing failed and something ran; 1: failures; 2: broken adapter; 3: nothing ran, cut short."""
        if self.verdict == "error":
            return 2
        if self.verdict == "non-conformant":
            return 1
        return 3 if self.cut_short or self.verdict == "nothing-ran" else 0


def fatal(item: Finding) -> bool:
    """Whether a finding makes the engine non-conformant: a SHOULD does not."""
    return item.verdict is Verdict.FAILED and item.level is not Level.SHOULD


def _emitted(case: Case) -> frozenset[Layout]:
    """Give the layouts of all steps of a case, and those that it says its producers emit."""
    return frozenset(step.emitted for step in case.steps) | (case.config.layouts or frozenset())


class Runner:
    """Runs cases of one engine in one world."""

    def __init__(self, engine: Loaded, world: World) -> None:
        """Keep both; twins that passed are remembered."""
        self.engine = engine
        self.world = world
        self._twins: dict[str, Finding] = {}

    def run(self, case: AnyCase) -> list[Finding]:
        """Give one finding per rule of the case."""
        if isinstance(case, Scenario):
            return run_scenario(self.engine.engine, self.engine.profile, case, self.world.name)
        refused = self._out_of_scope(case)
        rules = tuple(rule for rule in case.rules if rule not in refused)
        found = [self._unsupported(case, rule, refused[rule]) for rule in case.rules if rule in refused]
        if not rules:
            return found
        case = self._deployed(case).model_copy(update={"rules": rules})
        view = self._view(self.engine.engine, case)
        judged = judge(view, self.world.name)
        if "GAT-03" in rules:
            judged.append(self._without_assertions(case, view))
        return found + (judged if case.twin is None else self._with_twin(view, case.twin, judged))

    def _view(self, engine: Engine, case: Case) -> View:
        steps = producers(case)
        seen = self.world.run(engine, case, steps)
        return View(case, engine.profile, steps, expected(case, steps), seen)

    def _deployed(self, case: Case) -> Case:
        """Start the engine for the layouts of the case, where it is started for layouts at all.

        The configuration then names what the deployment emits. A set that the case brings stays.
        """
        layouts = self.engine.profile.deployment(_emitted(case))
        if layouts is None or case.config.layouts is not None:
            return case
        config = case.config.model_copy(update={"layouts": layouts - {Layout.UNCOUNTED}})
        twin = None if case.twin is None else case.twin.model_copy(update={"config": config})
        return case.model_copy(update={"config": config, "twin": twin})

    def _out_of_scope(self, case: Case) -> dict[str, str]:
        """Give the rules that do not apply to the engine, each with the reason."""
        profile = self.engine.profile
        lacking = [name for name in case.capabilities if name not in profile.capabilities]
        refused = {}
        emitted = _emitted(case)
        undeployed = profile.deployments and profile.deployment(emitted) is None
        for number in case.rules:
            rule = RULES[number]
            if undeployed:
                refused[number] = f"no deployment of the engine emits {', '.join(sorted(emitted))}"
            elif lacking:
                refused[number] = f"needs the capabilities {', '.join(lacking)}"
            elif not set(rule.surfaces) & profile.surfaces:
                refused[number] = f"is shown at the surface {', '.join(rule.surfaces)}"
            elif rule.capability is not None and rule.capability not in profile.capabilities:
                refused[number] = f"needs the capability {rule.capability}"
            elif number in profile.declined:
                refused[number] = f"declined: {profile.declined[number]}"
        return refused

    def _unsupported(self, case: Case, rule: str, why: str) -> Finding:
        return Finding(
            case=case.id,
            rule=rule,
            level=RULES[rule].level,
            world=self.world.name,
            topology=str(case.topology),
            verdict=Verdict.UNSUPPORTED,
            message=why,
        )

    def _without_assertions(self, case: Case, view: View) -> Finding:
        """GAT-03: what is rejected with assertions is rejected without."""
        twin = self.engine.unasserted
        if twin is None:
            return finding(view, "GAT-03", self.world.name, Outcome(Verdict.SKIPPED, self.engine.why_not))
        if rejections.fits(view):
            return finding(view, "GAT-03", self.world.name, rejections.FITS)
        rejection = rejections.invalid_ids if case.rule == "IDS-02" else rejections.rejection
        if rejection(view).verdict is not Verdict.PASSED:
            outcome = Outcome(Verdict.SKIPPED, "not rejected with assertions either; its own rule reports it")
            return finding(view, "GAT-03", self.world.name, outcome)
        bare = self._view(twin, case)
        fault = broken(bare)
        outcome = Outcome(Verdict.ERROR, f"without assertions: {fault}") if fault else rejection(bare)
        if outcome.verdict is Verdict.FAILED:
            outcome = outcome._replace(message=f"without assertions: {outcome.message}")
        return finding(bare, "GAT-03", self.world.name, outcome)

    def _with_twin(self, view: View, twin: Case, judged: list[Finding]) -> list[Finding]:
        """Let findings stand only if the accepted twin passes.

        A twin that breaks the adapter makes all of them *error*. A twin that fails is itself a
        failure, of LAY-02; what the case would show of its own rules is then not known.
        """
        if twin.id not in self._twins:
            found = judge(self._view(self.engine.engine, twin), self.world.name)
            self._twins[twin.id] = next(item for item in found if item.rule == "LAY-02")
        accepted = self._twins[twin.id]
        if accepted.verdict is Verdict.PASSED:
            return judged
        if accepted.verdict is Verdict.ERROR:
            outcome = Outcome(Verdict.ERROR, f"its accepted twin: {accepted.message}")
            return [finding(view, item.rule, self.world.name, outcome) for item in judged]
        outcome = Outcome(Verdict.SKIPPED, "its accepted twin does not pass (LAY-02), so this tells nothing")
        own = accepted.model_copy(update={"message": f"its accepted twin: {accepted.message}"})
        return [own, *(finding(view, item.rule, self.world.name, outcome) for item in judged)]
