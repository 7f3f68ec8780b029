"""The fact about the slots of a decode graph: what becomes of rows whose extent is told in requests.

In a graph every DP rank has as many rows; its own lie at its slot, DP rank times extent. A
graph that verifies drafts has w tokens a request, and its extent in rows is w times that in
requests.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from routeproof_spec import Layout

from routeproof_reference.proofs.claims import accepted, any_of, negate, right
from routeproof_reference.proofs.obligation import UnknownShapeError
from routeproof_reference.proofs.symbolic import Bool
from routeproof_reference.proofs.target import Decision, Figures, Number, Target, Truth

if TYPE_CHECKING:
    from routeproof_reference.proofs.facts import Ground, Theorem


@runtime_checkable
class GraphTarget(Protocol):
    """A target whose steps can be replays of a decode graph."""

    def in_graph(self, f: Figures, extent: Number) -> Decision:
        """Decide at the end of a graph that is said to have `extent` rows a DP rank."""
        ...


def slots_in_requests(target: Target, ground: "Ground", fault: str) -> "Iterator[Theorem]":
    """Told in requests, the extent is silently wrong exactly when T > 0, d > 0 and w > 1.

    Args:
        target: the code examined.
        ground: the step; its counts are replaced by those of the graph.
        fault: the faulty statement leaves out w > 1.

    """
    if not isinstance(target, GraphTarget):
        raise UnknownShapeError(f"{target.name} has no decode graphs")
    space, f = ground.space, ground.at.f
    width, requests = space.int("width"), space.int("requests")
    slot = space.name_product(f.dp_rank, requests, "slot")
    ground.add(width >= 1, requests >= 0, slot >= 0, (slot == 0) == ((f.dp_rank == 0) | (requests == 0)))
    ground.add(slot <= space.name_product(f.dp, requests, "slots") - requests)
    rows, before, total = requests * width, slot * width, f.dp * requests * width
    graph = f._replace(n=total, own=rows, before=before, total=total, largest=rows)
    at = ground.at._replace(t=0, f=graph)
    exact = (rows > 0) & (f.dp_rank > 0) & (True if fault else width > 1)
    paths = ground.explore(lambda: target.in_graph(graph, requests))

    def silent(found: Decision) -> Truth:
        return accepted(found) & negate(right(Layout.CROSS_DP, at, found))

    wrong = any_of(Bool(space, path.condition) & silent(path.result) for path in paths)
    yield "silently wrong exactly then", True, wrong ^ exact ^ True
