"""What `routeproof prove` says where something is wrong with the call, the tools or the code."""

import json
import sys
from pathlib import Path

import pytest
from routeproof_conformance.cli import app
from routeproof_conformance.prove import capturer_faults, runner
from routeproof_conformance.prove.targets import CapturerTarget
from routeproof_reference.proofs import Status, child, crosshair, smt
from routeproof_reference.proofs.run import establish
from typer.testing import CliRunner


def call(*words):
    result = CliRunner().invoke(app, ["prove", "--jobs", "1", *words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Give a cache of published engines with vLLM 0.33.0 in it, whose file is written by the test."""
    from routeproof_conformance.engines import fetch, vllm
    from routeproof_conformance.prove import targets

    file = tmp_path / vllm.FILE
    file.parent.mkdir(parents=True)

    class Cached:
        def path(self, _):
            return file

    monkeypatch.setattr(targets, "cached", lambda *_: Cached())
    assert fetch.cached is not targets.cached
    return file


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (b"class Other:\n    pass\n", "0 classes RoutedExpertsCapturer"),
        (b"class RoutedExpertsCapturer(:\n", "SyntaxError"),
        (b"\xff\xfe", "codec"),
        (b"a\0b", "null"),
        (b"class RoutedExpertsCapturer:\n    def capture(self, a):\n        pass\n", "capture takes"),
    ],
)
def test_a_file_of_another_shape_is_an_error_of_each_obligation(published: Path, source, named):
    published.write_bytes(source)
    result = call("--engine", "vllm==0.33.0", "--json")
    assert result.exit_code == 2
    rows = json.loads(result.stdout)["results"]
    assert {row["status"] for row in rows} == {"error"}
    assert {"own-rows", "fail-closed", "lockstep"} <= {row["obligation"] for row in rows}
    assert all(named in row["detail"] for row in rows), rows[0]["detail"]


@pytest.mark.parametrize(
    "words", [("--only", ""), ("--engine", ""), ("--only", "own-rows,"), ("--only", "x")]
)
def test_an_empty_or_unknown_name_is_a_usage_error(words):
    result = call(*words)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "routeproof: " in result.stderr


def test_what_does_not_apply_is_said():
    result = call("--only", "box-deep", "--engine", "reference")
    assert (result.exit_code, result.stdout) == (3, "")
    assert "box-deep needs --deep" in result.stderr


@pytest.mark.parametrize("missing", ["z3", "crosshair"])
def test_without_a_tool_its_obligations_are_open_and_say_what_to_install(missing, monkeypatch):
    real = crosshair.importlib.util.find_spec
    monkeypatch.setattr(
        crosshair.importlib.util, "find_spec", lambda name: None if name == missing else real(name)
    )
    if missing == "z3":
        monkeypatch.setitem(sys.modules, "z3", None)
    target = runner.target_of("reference")
    names = ("contracts", "arrays", *(("own-rows", "uncounted") if missing == "z3" else ()))
    for name in names:
        result = establish(name, target)
        assert result.status is Status.OPEN, (name, result)
        assert "not installed: pip install 'routeproof[prove]'" in result.detail


def test_a_crosshair_that_breaks_establishes_nothing(monkeypatch):
    class Done:
        returncode, stdout, stderr = 2, f"No differences found. {crosshair.EXHAUSTED}", "it broke"

    monkeypatch.setattr(child, "run", lambda *_, **__: Done())
    for name in ("contracts", "same-decision"):
        result = runner.one(name, "routeproof", deep=False)
        assert result.status is Status.OPEN, result
        assert "exit code 2: it broke" in result.detail


@pytest.mark.parametrize("fault", capturer_faults.FAULTS)
def test_every_fault_of_the_capturers_decision_still_has_its_place(fault):
    assert CapturerTarget(fault).name.endswith(fault)


def test_the_capturers_controls_are_faults_of_the_capturer():
    pytest.importorskip("z3")
    found = smt.prove(CapturerTarget().faulty("shards rounded down"), "own-rows", (2,))
    assert found.status is Status.REFUTED
    assert "routeproof with fault" in str(found.counterexample)
