"""Context builders and routers with one fault each; the class name says the fault.

`tests.faulty_contexts:CountsRequests` names one on the command line, with the repository on PYTHONPATH.
"""

# ruff: noqa: ARG002 - a fault is often to ignore an argument

from routeproof_conformance.contexts.engine import Routed
from routeproof_conformance.contexts.own import ReferenceContexts
from routeproof_conformance.engines.own import ReferenceEngine
from routeproof_reference import tensors
from routeproof_spec import BatchPath, Layout, Surface


def engine(fault):
    """Turn a fault into an engine of the same name: a change of what is told right, or a router."""

    def __init__(self):  # noqa: N807
        ReferenceEngine.__init__(self)
        claims = {"surfaces": frozenset(Surface), "capabilities": frozenset({"expert-load-balancing"})}
        self.profile = self.profile.model_copy(update=claims)

    def probe(_self, _surface):
        return fault() if issubclass(fault, Router) else Changed(fault())

    body = {"__init__": __init__, "probe": probe, "__module__": __name__, "__doc__": fault.__doc__}
    return type(fault.__name__, (ReferenceEngine,), body)


class Changed(ReferenceContexts):
    def __init__(self, fault):
        self.fault = fault

    def tell(self, topology, batch, rank, mask):
        right = super().tell(topology, batch, rank, mask)
        truth = tensors(topology, batch, rank)
        return tuple(
            self.fault.change(told, true, batch, topology, mask)
            for told, true in zip(right, truth, strict=True)
        )


class Router:
    digests = {}  # noqa: RUF012


@engine
class CountsTheMask:
    """The length of the padding mask, which is a shard, is taken for the batch."""

    def change(self, told, true, batch, topology, mask):
        return told if mask is None else told._replace(counts=(len(mask),) * topology.dp)


@engine
class CountsRealRowsOfTheMask:
    def change(self, told, true, batch, topology, mask):
        return told if mask is None else told._replace(counts=(len(mask) - sum(mask),) * topology.dp)


@engine
class TellsRealCounts:
    def change(self, told, true, batch, topology, mask):
        return told._replace(counts=true.part.real, start=None)


@engine
class RoundsShardsDown:
    def change(self, told, true, batch, topology, mask):
        sizes = tuple(count // topology.tp for count in told.counts for _ in range(topology.tp))
        return told._replace(shard_sizes=sizes) if told.shard_sizes else told


@engine
class CountsRequests:
    def change(self, told, true, batch, topology, mask):
        return told._replace(counts=tuple(count // batch.width for count in told.counts), start=None)


@engine
class CountsShards:
    """Tells the rows of one shard: the count is taken after sharding."""

    def change(self, told, true, batch, topology, mask):
        sharded = batch.emitted is Layout.TP_SHARD
        counts = tuple(-(-count // topology.tp) for count in told.counts)
        return told._replace(counts=counts, start=None) if sharded else told


@engine
class LeavesTheCountOut:
    def change(self, told, true, batch, topology, mask):
        return told._replace(counts=None) if batch.path is BatchPath.FUNCTION else told


@engine
class TakesTheStaleGraph:
    """The extent of the decode graph that was replayed last is told for a prefill graph."""

    def change(self, told, true, batch, topology, mask):
        if batch.path is not BatchPath.PREFILL_GRAPH:
            return told
        return told._replace(counts=None if batch.earlier is None else (batch.earlier,) * topology.dp)


@engine
class ForgetsOffsets:
    def change(self, told, true, batch, topology, mask):
        return told._replace(offset=0)


@engine
class TellsTheWholeStep:
    """Every microbatch is told the counts of the whole step."""

    def change(self, told, true, batch, topology, mask):
        whole = (max(batch.real),) * topology.dp
        return told._replace(counts=whole) if batch.microbatches > 1 else told


@engine
class TellsTheWholeStepOfAReplay:
    def change(self, told, true, batch, topology, mask):
        return told if batch.kept is None else told._replace(counts=batch.real, start=None)


@engine
class StartsAtTheLargest:
    """The own rows are looked for as if every DP rank had as many as the largest."""

    def change(self, told, true, batch, topology, mask):
        rank = 0 if true.start == 0 else 1
        return told._replace(start=rank * max(true.part.counts))


@engine
class ContradictsItself:
    def change(self, told, true, batch, topology, mask):
        return told._replace(own=sum(told.counts))


@engine
class CapturesPhysicalIds(Router):
    def route(self, routing, logical):
        return Routed(routing.kernel, routing.kernel)


@engine
class CapturesNothing(Router):
    def route(self, routing, logical):
        return Routed((), routing.kernel)
