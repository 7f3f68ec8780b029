"""The obligations of the capturer in torch find faults that were planted in its code."""

from collections import Counter

import pytest

pytest.importorskip("hypothesis")
pytest.importorskip("torch")

from hypothesis import Phase, given, settings
from routeproof_conformance.engines.own import PerLayerEngine, RouteproofEngine
from routeproof_conformance.prove import capturer, differential
from routeproof_impl import capturer as impl
from routeproof_impl import exchange, figures, packing, snapshot
from routeproof_impl.plans import Summary
from routeproof_impl.steps import OpenStep
from routeproof_reference import plan
from routeproof_reference.proofs.machine import machine
from routeproof_reference.proofs.obligation import OpenError, Status
from routeproof_reference.proofs.registry import BY_ID
from routeproof_reference.proofs.strategies import malformed_sizes, steps, topologies
from routeproof_spec import CaptureConfig, Layout, LayoutError, Rank, ShardGroupError, Topology

CONFIG = CaptureConfig(max_tokens=12, layers=2, top_k=8, experts=256)


def drawn(strategy, examples=150):
    """Give examples of a strategy."""
    found = []

    @settings(max_examples=examples, database=None, derandomize=True, deadline=None, phases=(Phase.generate,))
    @given(strategy)
    def keep(one):
        found.append(one)

    keep()
    return found


def refuted(name):
    check = capturer.CHECKS[name]("")
    return check.status is Status.REFUTED


# --- layouts-drawn


@pytest.mark.parametrize("fault", ["negative", "uneven", "short"])
def test_malformed_sizes_that_pass_are_found(monkeypatch, fault):
    right = figures.figures_of

    def planted(counts, sizes, rank):
        found = right(counts, sizes, rank)
        sizes, dp, d = sizes or (), rank.topology.dp, rank.dp
        group = len(sizes) // dp
        if fault == "short":
            return found._replace(group_rows=sum(sizes) if found.grouped else 0)
        form = len(sizes) % dp == 0 if fault == "negative" else min(sizes, default=0) >= 0
        if not (found.sized and form):
            return found
        own = sum(sizes[d * group : (d + 1) * group])
        return found._replace(grouped=True, group_before=sum(sizes[: d * group]), group_rows=own)

    monkeypatch.setattr("routeproof_impl.plans.figures_of", planted)
    assert refuted("layouts-drawn")
    assert refuted("differential-per-layer")


@pytest.mark.parametrize("fault", BY_ID["layouts-drawn"].controls)
def test_controls_of_layouts_drawn(fault):
    assert capturer.layouts_drawn(fault).status is Status.REFUTED


def test_too_few_outcomes_leave_it_open(monkeypatch):
    monkeypatch.setattr(capturer, "malformed_sizes", steps)
    monkeypatch.setattr(capturer, "EXAMPLES", 60)
    check = capturer.layouts_drawn("")
    assert check.status is Status.OPEN, check
    assert "ShardGroupError" not in check.detail


# --- the strategies


def _outcome(step, topology, dp):
    rank = Rank(topology=topology, dp=dp, tp=0)
    (call,) = step.calls
    try:
        plan(CONFIG, rank, step.context, 0, 0, call.n, CONFIG.width)
    except (LayoutError, ShardGroupError) as error:
        return type(error)
    return None


def test_malformed_sizes_are_malformed():
    topology = Topology(tp=2, dp=2)
    found = drawn(malformed_sizes(topology, CONFIG))
    kinds = Counter()
    for step in found:
        sizes, counts = step.context.shard_sizes, step.context.counts
        negative, uneven = min(sizes) < 0, len(sizes) % 2
        short = any(sum(sizes[2 * d : 2 * d + 2]) < counts[d] for d in (0, 1))
        assert negative or uneven or short or 0 in counts, step
        kinds += Counter(negative=negative, uneven=uneven, short=short and not negative and not uneven)
    assert min(kinds.values()) > 10, kinds
    assert len(kinds) == 3, kinds
    seen = {_outcome(step, topology, dp) for step in found if step.calls for dp in (0, 1)}
    assert {None, ShardGroupError} <= seen


def test_microbatches_come_in_shards_and_gathered():
    found = drawn(steps(Topology(tp=2, dp=2), CONFIG, split=True), 150)
    seen = {step.emitted for step in found if step.context.microbatches}
    assert {Layout.TP_SHARD, Layout.GATHERED_SHARDS, Layout.PADDED_LOCAL} <= seen


def test_a_step_that_is_not_empty_has_rows_everywhere():
    found = drawn(steps(Topology(tp=2, dp=2), CONFIG, split=True, empty=False))
    assert all(min(step.context.real) > 0 for step in found)
    assert any(min(step.context.real) == 0 for step in drawn(steps(Topology(tp=2, dp=2), CONFIG)))


def test_forms_are_drawn_only_if_asked_for():
    topology = Topology(tp=2, dp=2)
    forms = {(step.element, step.strided) for step in drawn(steps(topology, CONFIG, forms=True))}
    assert len(forms) == 4
    assert {(step.element, step.strided) for step in drawn(steps(topology, CONFIG))} == {("int32", False)}


def test_topologies_are_as_asked():
    assert {one.tp for one in drawn(topologies(tp=(2, 3), dp=1))} == {2, 3}


# --- state-machine


def _early_lease(monkeypatch):
    read = snapshot.Snapshot._read

    def planted(self):
        rows = read(self)
        if self._lease is None:
            return rows
        shown = self._lease.slot.rows[: self._shape[0]].numpy()
        del rows
        self._lease = None
        return shown

    monkeypatch.setattr(snapshot.Snapshot, "_read", planted)


def _late_layer_check(monkeypatch):
    judged = impl.RoutedExpertsCapturer._judged

    def planted(self, step, layer, ids, microbatch):
        if self._rank.topology.tp > 1 and not 0 <= layer < self._config.layers:
            self._comm.all_gather(ids)
        return judged(self, step, layer, ids, microbatch)

    monkeypatch.setattr(impl.RoutedExpertsCapturer, "_judged", planted)


def _rejected_forgotten(monkeypatch):
    monkeypatch.setattr(impl.RoutedExpertsCapturer, "_reject", Publishes._reject)


def _physical_rows(monkeypatch):
    made = exchange.Received.__init__

    def planted(self, gathered, ranks, blocks, form):
        made(self, gathered, ranks, tuple(block._replace(real=block.own) for block in blocks), form)

    monkeypatch.setattr(exchange.Received, "__init__", planted)


class _BySize(dict):
    """Keeps the views of a gather by its blocks, whatever their real rows."""

    def get(self, blocks):
        return super().get(tuple(block._replace(real=0) for block in blocks))

    def __setitem__(self, blocks, made):
        super().__setitem__(tuple(block._replace(real=0) for block in blocks), made)


def _views_of_other_real_rows(monkeypatch):
    made = packing.Packer.__init__

    def planted(self, *args):
        made(self, *args)
        self._exchanges = _BySize()

    monkeypatch.setattr(packing.Packer, "__init__", planted)


def _never_mixed(monkeypatch):
    made = Summary.__init__

    def planted(self, captured, parts):
        made(self, captured, parts)
        self.mixed = False

    monkeypatch.setattr(Summary, "__init__", planted)


def _parts_unchecked(monkeypatch):
    def planted(self, rank):  # noqa: ARG001
        return self.descriptor.summed_up(self.captured)

    monkeypatch.setattr(OpenStep, "whole", planted)


@pytest.mark.parametrize(
    "plant",
    [
        _early_lease,
        _late_layer_check,
        _rejected_forgotten,
        _physical_rows,
        _views_of_other_real_rows,
        _never_mixed,
        _parts_unchecked,
    ],
)
def test_the_machine_finds(monkeypatch, plant):
    plant(monkeypatch)
    assert refuted("state-machine")


@pytest.mark.parametrize("fault", BY_ID["state-machine"].controls)
def test_controls_of_the_machine(fault):
    assert capturer.state_machine(fault).status is Status.REFUTED


def test_runs_that_reuse_nothing_leave_it_open(monkeypatch):
    monkeypatch.setattr(capturer, "RUNS", (4, 4))
    assert capturer.state_machine("").status is Status.OPEN


class Publishes(impl.RoutedExpertsCapturer):
    """A capturer that publishes what the accepted calls of a step wrote, and no promise against it."""

    def _reject(self, step, error):
        pass


@pytest.mark.parametrize(("drops", "right"), [(False, True), (True, False)])
def test_a_step_with_a_rejected_call_may_be_published_unless_promised_otherwise(drops, right):
    engine = RouteproofEngine()
    engine._make = Publishes
    found = machine(engine.create, capturer.concatenate, drops_rejected=drops)
    check = capturer.runs_of(found, 15)
    assert (check.status is not Status.REFUTED) is right, check


# --- mode per-layer, no-host-sync, differential


def _gathered(monkeypatch, change):
    """Change what a layer's gather in mode "per-layer" does."""
    right = impl.RoutedExpertsCapturer._gathered
    monkeypatch.setattr(impl.RoutedExpertsCapturer, "_gathered", lambda self, rows: change(right, self, rows))


@pytest.mark.parametrize("name", ["layouts-drawn", "state-machine", "differential-per-layer"])
def test_reversed_shards_of_a_layer_are_found(monkeypatch, name):
    monkeypatch.setattr(capturer, "_engines", lambda: (PerLayerEngine(),))
    monkeypatch.setattr(capturer, "RUNS", (40,))
    _gathered(monkeypatch, lambda right, self, rows: right(self, rows).flip(0))
    assert refuted(name)


class Strided:
    """Rows that say they are contiguous as they are."""

    def __init__(self, rows):
        self.rows, self.dtype, self.shape = rows, rows.dtype, rows.shape

    def contiguous(self):
        return self.rows


@pytest.mark.parametrize("name", ["layouts-drawn", "differential-per-layer"])
def test_a_strided_gather_of_a_layer_is_found(monkeypatch, name):
    _gathered(monkeypatch, lambda right, self, rows: right(self, Strided(rows)))
    assert refuted(name)


def test_ids_read_in_mode_per_layer_are_found(monkeypatch):
    def reads(right, self, rows):
        rows.max().item()
        return right(self, rows)

    _gathered(monkeypatch, reads)
    monkeypatch.setattr(capturer, "MODES", ("per-layer",))
    assert refuted("no-host-sync")


@pytest.mark.parametrize("layout", ["PADDED_LOCAL", "PADDED_TO_MAX"])
def test_ids_read_in_one_layout_are_found(monkeypatch, layout):
    write = impl.RoutedExpertsCapturer._write
    code = figures.CODES[Layout(layout)]

    def reads(self, call, target, ids):
        if call.plan.layout == code:
            ids.sum().item()
        write(self, call, target, ids)

    monkeypatch.setattr(impl.RoutedExpertsCapturer, "_write", reads)
    check = capturer.no_host_sync("")
    assert check.status is Status.REFUTED
    assert layout in check.detail


@pytest.mark.parametrize("fault", BY_ID["no-host-sync"].controls)
def test_controls_of_no_host_sync(fault):
    assert capturer.no_host_sync(fault).status is Status.REFUTED


def test_a_layout_that_is_not_run_leaves_it_open(monkeypatch):
    monkeypatch.setattr(capturer, "_meta_contexts", lambda tp: iter(()))  # noqa: ARG005
    check = capturer.no_host_sync("")
    assert check.status is Status.OPEN
    assert "PADDED_LOCAL" in check.detail


@pytest.mark.parametrize("fault", BY_ID["differential"].controls)
def test_controls_of_the_differential(fault):
    assert differential.run(fault).status is Status.REFUTED


@pytest.mark.parametrize("fault", BY_ID["differential-per-layer"].controls)
def test_controls_of_the_differential_per_layer(fault):
    assert differential.per_layer(fault).status is Status.REFUTED


def test_the_differential_in_mode_per_layer(monkeypatch):
    monkeypatch.setattr(differential, "LARGEST_PER_LAYER", {1: 9, 2: 2})
    monkeypatch.setattr(differential, "LEAST_PER_LAYER", 5_000)
    check = differential.per_layer()
    assert check.status is Status.ESTABLISHED, check


@pytest.mark.parametrize(("name", "value"), [("LEAST_PER_LAYER", 10**6), ("LEAST_MALFORMED", 10**6)])
def test_too_few_calls_leave_the_differential_open(monkeypatch, name, value):
    monkeypatch.setattr(differential, name, value)
    monkeypatch.setattr(differential, "TP_SIZES", (2,))
    monkeypatch.setattr(differential, "LARGEST_PER_LAYER", {2: 2})
    assert differential.per_layer().status is Status.OPEN


def test_malformed_sizes_of_the_differential():
    found = list(differential.malformed((2, 2, 1, 1), (3, 2), 0))
    assert found == [(-1, 5, 1, 1), (2, 2, 1, 1, 0), (2, 2, 1), (2, 0, 3, 1)]
    assert list(differential.malformed((3,), (3,), 0)) == [(2,)]


def test_both_modes_are_examined():
    assert [type(engine) for engine in capturer._engines()] == [RouteproofEngine, PerLayerEngine]


def test_without_torch_everything_is_open(monkeypatch):
    def missing(_):
        raise capturer.EngineError("no torch")

    monkeypatch.setattr(RouteproofEngine, "__init__", missing)
    for name in ("layouts-drawn", "state-machine", "no-host-sync", "differential", "differential-per-layer"):
        with pytest.raises(OpenError, match="no torch"):
            capturer.CHECKS[name]("")
