"""What can be examined: the reference, the capturer's decision, a published file."""

from routeproof_reference.proofs.faults import ReferenceTarget
from routeproof_reference.proofs.target import Decision, Figures, Members, Number, Outcome, Target
from routeproof_spec import Layout, default_layouts

from routeproof_conformance.engines import EngineError
from routeproof_conformance.engines.fetch import cached
from routeproof_conformance.engines.vllm import FILE, PACKAGE
from routeproof_conformance.prove.contracts import load_decision
from routeproof_conformance.prove.published import PublishedTarget


class CapturerTarget:
    """The decision of `routeproof_impl`; planted faults are the reference's, through the same checks."""

    name = "routeproof"
    configurable = True
    sizes_at_one = True
    deployed = False
    smallest_dp = 1

    def __init__(self) -> None:
        """Load the decision without torch."""
        self._plain = load_decision()
        self._codes: dict[Layout | None, int] = {None: self._plain.UNDECLARED}
        self._codes.update({layout: getattr(self._plain, layout.name) for layout in Layout})
        self.faults = ReferenceTarget.faults

    def layouts(self, dp: int) -> frozenset[Layout]:
        """Give the default set."""
        return default_layouts(dp)

    def decide(self, figures: Figures, members: Members, declared: Layout | None) -> Decision:
        """Run `locate`; its sums over groups are 0 unless the groups are formed."""
        f, plain = figures, self._plain
        found = plain.locate(
            n=f.n,
            counted=True,
            own=f.own,
            before=f.before,
            total=f.total,
            largest=f.largest,
            dp=f.dp,
            tp=f.tp,
            dp_rank=f.dp_rank,
            sized=f.has_sizes,
            grouped=f.formed,
            gathered=f.sizes_total,
            group_before=f.sizes_before,
            group_rows=f.sizes_own,
            **members._asdict(),
            declared=self._codes[declared],
        )
        if found.verdict == plain.FITS:
            return Decision(Outcome.ROWS, found.start, found.length, found.gather)
        groups = found.verdict == plain.BAD_GROUPS
        return Decision(Outcome.GROUP_ERROR if groups else Outcome.LAYOUT_ERROR)

    def unknown(self, n: Number) -> Decision:
        """Run `pass_through`."""
        found = self._plain.pass_through(n, self._plain.UNDECLARED)
        return Decision(Outcome.ROWS, found.start, found.length, found.gather)

    def faulty(self, fault: str) -> Target:
        """Plant a fault."""
        return ReferenceTarget(fault)


def target_of(name: str) -> Target:
    """Make the target of an engine's name; raise EngineError where there is none."""
    package, _, version = name.partition("==")
    if name == "reference":
        return ReferenceTarget()
    if name == "routeproof":
        return CapturerTarget()
    if package == PACKAGE and version:
        return PublishedTarget(name, cached(PACKAGE, version, (FILE,)).path(FILE))
    raise EngineError(
        f"nothing to prove of {name!r}: expected reference, routeproof or vllm==X, such as vllm==0.33.0"
    )
