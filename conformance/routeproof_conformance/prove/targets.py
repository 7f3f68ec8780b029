"""What can be examined: the reference, the capturer's decision, a published file."""

import inspect
from types import MappingProxyType

from routeproof_reference.proofs.faults import ReferenceTarget
from routeproof_reference.proofs.target import Decision, Figures, Members, Number, Outcome, Target
from routeproof_spec import Layout, default_layouts

from routeproof_conformance.engines import EngineError, sglang, vllm
from routeproof_conformance.engines.fetch import cached
from routeproof_conformance.engines.sglang_source import FILES
from routeproof_conformance.prove.capturer_faults import FAULTS, faulty
from routeproof_conformance.prove.contracts import load_decision
from routeproof_conformance.prove.published import PublishedTarget
from routeproof_conformance.prove.sglang import DEPLOYMENTS, sglang_target


class CapturerTarget:
    """The decision of `routeproof_impl`, or a faulty copy of it."""

    configurable = True
    sizes_at_one = True
    deployed = False
    smallest_dp = 1
    faults = tuple(FAULTS)
    controls = MappingProxyType({"declared": ("declaration unchecked", "counts do not matter")})

    def __init__(self, fault: str = "") -> None:
        """Load the decision without torch, or plant a fault."""
        self.name = f"routeproof with fault: {fault}" if fault else "routeproof"
        self._plain = faulty(fault) if fault else load_decision()
        self._codes: dict[Layout | None, int] = {None: self._plain.UNDECLARED}
        self._codes.update({layout: getattr(self._plain, layout.name) for layout in Layout})

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

    def unknown(self, n: Number, declared: Layout | None) -> Decision:
        """Run `locate` without counts; it may read nothing else."""
        plain = self._plain
        given = {"n": n, "counted": False, "declared": self._codes[declared]}
        found = plain.locate(**{**dict.fromkeys(inspect.signature(plain.locate).parameters), **given})
        if found.verdict != plain.FITS:
            return Decision(Outcome.LAYOUT_ERROR)
        return Decision(Outcome.ROWS, found.start, found.length, found.gather)

    def faulty(self, fault: str) -> Target:
        """Plant a fault."""
        return CapturerTarget(fault)


def names_of(engine: str) -> tuple[str, ...]:
    """Give the targets of an engine: one, or one for each way of starting it."""
    package, _, version = engine.partition("==")
    if package == sglang.PACKAGE and version and " " not in version:
        return tuple(f"{engine} {deployment}" for deployment in DEPLOYMENTS)
    return (engine,)


def target_of(name: str) -> Target:
    """Make the target of a name, such as `sglang==0.5.23 deepep`; raise EngineError where there is none."""
    package, _, rest = name.partition("==")
    version, _, deployment = rest.partition(" ")
    if name == "reference":
        return ReferenceTarget()
    if name == "routeproof":
        return CapturerTarget()
    if package == vllm.PACKAGE and version and not deployment:
        return PublishedTarget(name, cached(package, version, (vllm.FILE,)).path(vllm.FILE))
    if package == sglang.PACKAGE and version and deployment in DEPLOYMENTS:
        return sglang_target(f"{package}=={version}", deployment, cached(package, version, FILES).root)
    raise EngineError(
        f"nothing to prove of {name!r}: expected reference, routeproof, vllm==X or sglang==X, "
        f"such as vllm==0.33.0; of SGLang one deployment with 'sglang==X NAME', NAME {', '.join(DEPLOYMENTS)}"
    )
