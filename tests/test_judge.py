"""The judge tells wrong adapters from wrong engines, and says what it saw."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from routeproof_conformance.cases import select
from routeproof_conformance.engines import Loaded
from routeproof_conformance.engines import vllm as adapter
from routeproof_conformance.engines.stubs import StubObject
from routeproof_conformance.engines.vllm import VllmEngine
from routeproof_conformance.runner import Run, Runner
from routeproof_conformance.worlds.simulated import SimulatedWorld
from routeproof_spec import Case, Finding, Level, Verdict

from tests.toy_engines import PerLayerCapturer, ToyEngine

WORLD = SimulatedWorld()
SIX = "LAY-02/six-tokens[tp=2,dp=1,N=6]"
SHARDS = "LAY-03/shards[tp=2,dp=1,T=5,padded=1]"
ROW_OF_SIX = "LAY-01/one-row-of-six[tp=2,dp=1,N=6,n=1]"


def one(case: str) -> Case:
    (found,) = select(case)
    return found


def judged(capturer: type[PerLayerCapturer], case: str) -> dict[str, Finding]:
    engine = type(capturer.__name__, (ToyEngine,), {"capturer": capturer})()
    found = Runner(Loaded("toy", engine, None, "no twin here"), WORLD).run(one(case))
    return {item.rule: item for item in found}


def publishing(change: Callable[[np.ndarray], object], rank: int = 0) -> type[PerLayerCapturer]:
    """A right capturer whose adapter gives something else than the snapshot."""

    class Changed(PerLayerCapturer):
        def published(self):
            return change(self.snapshot) if self.rank.tp == rank else self.snapshot

    return Changed


def buffered(change: Callable[[np.ndarray], object]) -> type[PerLayerCapturer]:
    class Changed(PerLayerCapturer):
        def buffer(self):
            return change(self.store)

    return Changed


WRONG_SHAPES = {
    "no layer axis": (lambda rows: rows[:, 0], "published shape [24, 8], expected [24, 2, 8] = [R_d, L, K]"),
    "layers first": (lambda rows: rows.transpose(1, 0, 2), "published shape [2, 24, 8], expected [24, 2, 8]"),
    "a row less": (lambda rows: rows[:-1], "published shape [23, 2, 8], expected [24, 2, 8]"),
    "flat": (lambda rows: rows.reshape(-1), "published shape [384], expected [24, 2, 8]"),
    "a number": (lambda rows: rows[0, 0, :1].reshape(()), "published shape [], expected [24, 2, 8]"),
    "a column more": (lambda rows: np.pad(rows, ((0, 0), (0, 0), (0, 1))), "shape [24, 2, 9], expected [24"),
    "floats": (lambda rows: rows.astype(np.float32), "published element type float32, expected integers"),
    "none": (lambda _: None, "published() is None, expected [24, 2, 8]"),
}


@pytest.mark.parametrize("what", WRONG_SHAPES)
def test_an_array_of_another_form_fails_with_what_was_expected_and_got(what: str) -> None:
    change, message = WRONG_SHAPES[what]
    found = judged(publishing(change), SHARDS)
    assert found["LAY-02"].verdict is Verdict.FAILED
    assert message in found["LAY-02"].message
    assert "step 0, publisher dp0/tp0" in found["LAY-02"].message
    assert not [item for item in found.values() if item.verdict is Verdict.ERROR]


MISUSES = {
    "a list": (lambda rows: rows.tolist(), "published() returned list, expected a numpy array of integers"),
    "text": (lambda _: "rows", "published() returned str, expected a numpy array"),
    "booleans": (lambda rows: rows > 0, "published() returned an array of bool, expected"),
    "objects": (lambda rows: rows.astype(object), "published() returned an array of object, expected"),
}


@pytest.mark.parametrize("what", MISUSES)
def test_what_is_no_array_of_numbers_is_a_broken_adapter(what: str) -> None:
    change, message = MISUSES[what]
    found = judged(publishing(change), SHARDS)
    for item in found.values():
        assert item.verdict is Verdict.ERROR
        assert "broken adapter or stub: dp0/tp0, step 0, published: TypeError" in item.message
        assert message in item.message


def test_floats_are_not_taken_for_integers_though_they_are_equal() -> None:
    found = judged(publishing(lambda rows: rows.astype(np.float64)), SHARDS)
    assert found["LAY-02"].verdict is Verdict.FAILED


def test_a_wider_type_is_judged_by_its_own_rule_alone() -> None:
    wide = publishing(lambda rows: rows.astype(np.int64))
    assert judged(wide, SHARDS)["LAY-02"].verdict is Verdict.PASSED
    found = judged(wide, "SNP-02/kept[tp=1,dp=1,E=256]")
    assert found["SNP-02"].verdict is Verdict.FAILED
    assert "published int64, the profile names uint8 for E = 256" in found["SNP-02"].message


def test_rows_at_another_rank_are_no_affair_of_the_own_rows() -> None:
    everywhere = publishing(lambda _: np.zeros((24, 2, 8), np.uint8), rank=1)
    found = judged(everywhere, SHARDS)
    assert {rule for rule, item in found.items() if item.verdict is Verdict.FAILED} == {"SNP-04"}


@pytest.mark.parametrize("change", [lambda rows: rows[:5, 0], lambda rows: rows[:3], lambda rows: rows[0, 0]])
def test_a_buffer_of_another_form_fails(change: Callable[[np.ndarray], np.ndarray]) -> None:
    found = judged(buffered(lambda store: change(store).copy()), SHARDS)
    assert found["LAY-02"].verdict is Verdict.FAILED
    assert "buffer() has shape" in found["LAY-02"].message


def test_a_buffer_that_is_no_array_is_a_broken_adapter() -> None:
    found = judged(buffered(lambda store: store.tolist()), ROW_OF_SIX)
    assert {item.verdict for item in found.values()} == {Verdict.ERROR}
    assert "buffer() returned list" in found["BUF-02"].message


def test_nothing_published_is_told_once_and_skipped_elsewhere() -> None:
    found = judged(publishing(lambda _: None), SHARDS)
    assert found["LAY-02"].verdict is Verdict.FAILED
    for rule in ("LAY-03", "LAY-05", "BUF-01", "SNP-01", "SNP-03"):
        assert found[rule].verdict is Verdict.SKIPPED, rule
        assert "nothing was published" in found[rule].message


# --- what a message holds


class OnlyOwnShard(PerLayerCapturer):
    def gathers(self, _name, _own):
        return False


def test_a_failure_tells_counts_shapes_and_rows() -> None:
    message = judged(OnlyOwnShard, SIX)["LAY-02"].message
    assert "step 1: TP_SHARD, T [6], R [6]; handed over: dp0/tp0-1 [3, 2]" in message
    assert (
        "published row 3, layer 0: expected [6, 7], got [7, 2] (real row 3 of dp0/tp0, layer 0, step 0)"
        in (message)
    )


def test_a_failure_names_microbatches_and_shard_sizes() -> None:
    class Shifts(PerLayerCapturer):
        def write(self, layer, _offset, rows):
            super().write(layer, 0, rows)

    message = judged(Shifts, "BUF-05/halves[tp=2,dp=2,T=4+3,emitted=TP_SHARD]")["BUF-05"].message
    assert "microbatch at 4: T [3, 3], R [3, 3]" in message
    blocks = judged(publishing(lambda rows: rows[:-1]), "LAY-04/gathered-groups[tp=2,dp=2,T=5+3]")
    assert "shard sizes [3, 3, 2, 2]; handed over: dp0/tp0-1 [10, 8], dp1/tp0-1 [10, 8]" in (
        blocks["LAY-02"].message
    )


def test_a_failure_lists_five_rows_and_counts_all() -> None:
    message = judged(publishing(lambda rows: rows[::-1]), SHARDS)["LAY-02"].message
    assert message.count("published row") == 5
    assert "rows differ" in message
    told = int(message.split(" rows differ")[0].rsplit(" ", 1)[1])
    assert told > 5


def test_an_error_tells_what_was_handed_over_too() -> None:
    class Broken(PerLayerCapturer):
        def gather(self, ids):
            return self.no_such_thing(ids)

    found = judged(Broken, SIX)
    for item in found.values():
        assert item.verdict is Verdict.ERROR
        assert "AttributeError: 'Broken' object has no attribute 'no_such_thing'" in item.message
        assert "handed over: dp0/tp0-1 [3, 2]" in item.message


# --- twins


class RejectsEverything(PerLayerCapturer):
    def capture(self, _layer, _ids, _microbatch=0):
        raise ValueError("no")


def test_who_rejects_everything_passes_no_rejection() -> None:
    found = judged(RejectsEverything, ROW_OF_SIX)
    assert found["LAY-02"].verdict is Verdict.FAILED
    assert found["LAY-02"].message.startswith("its accepted twin: a step that must be accepted was not")
    assert {found[rule].verdict for rule in ("LAY-01", "BUF-02", "COL-01", "COL-05", "GAT-03")} == {
        Verdict.SKIPPED
    }
    assert "its accepted twin does not pass" in found["LAY-01"].message


def test_a_twin_that_breaks_the_adapter_makes_the_case_an_error() -> None:
    class BreaksOnWholeRows(PerLayerCapturer):
        def check(self, layer, ids, microbatch):
            if len(ids) == 6:
                raise TypeError("six rows break me")
            return super().check(layer, ids, microbatch)

    found = judged(BreaksOnWholeRows, ROW_OF_SIX)
    assert {item.verdict for item in found.values()} == {Verdict.ERROR}
    assert "its accepted twin: broken adapter or stub" in found["LAY-01"].message
    assert "six rows break me" in found["LAY-01"].message


def test_a_right_rejection_needs_its_twin_once_only() -> None:
    counted = []

    class Counts(PerLayerCapturer):
        def __init__(self, config, rank, comm):
            counted.append(rank)
            super().__init__(config, rank, comm)

    engine = type("Counting", (ToyEngine,), {"capturer": Counts})()
    runner = Runner(Loaded("toy", engine, None, "no twin here"), WORLD)
    for _ in range(3):
        found = runner.run(one(ROW_OF_SIX))
        assert {item.rule: item.verdict for item in found}["LAY-01"] is Verdict.PASSED
    assert len(counted) == 2 * (3 + 1)


# --- the run's verdict

NAMES = {
    "error": (Verdict.ERROR, Verdict.FAILED, Verdict.PASSED),
    "non-conformant": (Verdict.FAILED, Verdict.SKIPPED, Verdict.PASSED),
    "partial": (Verdict.SKIPPED, Verdict.PASSED),
    "conformant": (Verdict.PASSED, Verdict.UNSUPPORTED),
    "nothing-ran": (Verdict.SKIPPED, Verdict.UNSUPPORTED),
}
CODES = {"error": 2, "non-conformant": 1, "partial": 0, "conformant": 0, "nothing-ran": 3}


def a_run(*verdicts: Verdict, level: Level = Level.MUST) -> Run:
    run = Run(Loaded("toy", ToyEngine(), None), ("simulated",))
    for number, verdict in enumerate(verdicts):
        run.findings.append(
            Finding(
                case=f"case-{number}",
                rule="LAY-02",
                level=level,
                world="simulated",
                topology="tp1",
                verdict=verdict,
            )
        )
    return run


@pytest.mark.parametrize("name", NAMES)
def test_the_worst_finding_decides(name: str) -> None:
    run = a_run(*NAMES[name])
    assert (run.verdict, run.exit_code) == (name, CODES[name])


def test_a_should_that_is_not_kept_is_not_fatal() -> None:
    run = a_run(Verdict.PASSED, Verdict.FAILED, level=Level.SHOULD)
    assert (run.verdict, run.exit_code) == ("conformant", 0)


def test_a_run_that_was_cut_short_is_no_success() -> None:
    run = a_run(Verdict.PASSED)
    run.cut_short = "a rank computed for ever"
    assert (run.verdict, run.exit_code) == ("partial", 3)


# --- a stub that lacks something


@pytest.mark.published
@pytest.mark.parametrize("lacking", ["dp_metadata", "batch_descriptor"])
def test_a_stub_that_lacks_an_attribute_is_an_error_and_no_rejection(
    vllm_file: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    whole = adapter.StubObject

    def without(name: str, **attributes: object) -> StubObject:
        attributes.pop(lacking, None)
        return whole(name, **attributes)

    monkeypatch.setattr(adapter, "StubObject", without)
    engine = VllmEngine(vllm_file("0.33.0"), "0.33.0")
    runner = Runner(Loaded("vllm==0.33.0", engine, engine.without_assertions()), WORLD)
    for case in (one(SIX), one(ROW_OF_SIX)):
        found = [item for item in runner.run(case) if item.verdict is not Verdict.UNSUPPORTED]
        assert {item.verdict for item in found} == {Verdict.ERROR}
        assert all(f"no attribute '{lacking}'" in item.message for item in found)
