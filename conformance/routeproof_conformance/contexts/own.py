"""The reference's own context: shows that the model and the judge agree, and carries mutants."""

import inspect
from hashlib import sha256
from pathlib import Path

from routeproof_reference import context as model
from routeproof_reference import right_context, tensors
from routeproof_spec import Batch, BatchPath, Layout, Rank, Topology

from routeproof_conformance.contexts.engine import Mask, Told


class ReferenceContexts:
    """Tells what a right context builder tells."""

    paths = frozenset(BatchPath)
    layouts = frozenset(Layout)
    takes_mask = True

    @property
    def digests(self) -> dict[str, str]:
        """The file of the model."""
        path = Path(inspect.getfile(model))
        return {f"routeproof_reference/{path.name}": sha256(path.read_bytes()).hexdigest()}

    def tell(self, topology: Topology, batch: Batch, rank: Rank, mask: Mask | None) -> tuple[Told, ...]:
        """Tell the counts of the right context; a mask is never read (LAY-07)."""
        del mask
        context = right_context(topology, batch)
        if not context.microbatches:
            told = Told(context.counts, shard_sizes=context.shard_sizes)
            return (told._replace(start=tensors(topology, batch, rank)[0].start),)
        return tuple(
            Told(part.counts, shard_sizes=part.shard_sizes, offset=part.offset)
            for part in context.microbatches
        )
