"""COL-07: a capturer that reads ids on the host is caught, one that reads counts is not."""

import pytest
from routeproof_conformance.cases import select
from routeproof_conformance.engines import Loaded, load
from routeproof_conformance.engines.own import RouteproofEngine
from routeproof_conformance.runner import Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_spec import Topology, Verdict

CASES = tuple(select(rule="COL-07", topologies=(Topology(tp=2), Topology(tp=2, dp=2))))


class Reading(RouteproofEngine):
    """The capturer, after a look at the ids."""

    def __init__(self, look):
        super().__init__()
        self.look = look

    def create(self, config, rank, comm):
        made = super().create(config, rank, comm)
        capture = made.capturer.capture

        def looking(layer, ids, microbatch=0):
            self.look(ids)
            capture(layer, ids, microbatch)

        made.capturer.capture = looking
        return made


def verdicts(engine):
    runner = Runner(Loaded("test", engine, None), SimulatedWorld())
    return {item.verdict for case in CASES for item in runner.run(case)}


@pytest.mark.parametrize(
    "look",
    [
        lambda ids: ids.max().item(),
        lambda ids: bool((ids < 0).any()),
        lambda ids: ids.tolist(),
        lambda ids: ids.cpu().numpy(),
        lambda ids: ids[ids < 0],
    ],
    ids=["item", "bool", "tolist", "numpy", "mask"],
)
def test_a_read_is_caught(look):
    assert verdicts(Reading(look)) == {Verdict.FAILED}


def test_a_shape_is_no_read():
    assert verdicts(Reading(lambda ids: (ids.shape[0], ids.dtype))) == {Verdict.PASSED}


def test_what_torch_cannot_do_without_data_is_an_error_not_a_failure():
    def look(ids):
        raise NotImplementedError("no kernel for this")

    assert verdicts(Reading(look)) == {Verdict.ERROR}


def test_an_engine_without_device_tensors_is_not_judged():
    runner = Runner(load("reference"), SimulatedWorld())
    assert {item.verdict for case in CASES for item in runner.run(case)} == {Verdict.UNSUPPORTED}
