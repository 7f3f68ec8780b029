"""Strict stand-ins, and modules that see them."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.stubs import StubModule, StubObject, load_source

ASSERTING = "from far.away import thing\ndef check(x):\n    assert x, 'no'\n    return thing\n"


def write(folder: Path, source: str) -> Path:
    path = folder / "engine.py"
    path.write_text(source)
    return path


def stubs() -> dict[str, StubModule]:
    return {"far.away": StubModule("far.away", thing=7)}


def test_a_missing_attribute_names_stub_and_attribute() -> None:
    with pytest.raises(AttributeError, match=r"stub module far\.away has no attribute 'other'"):
        _ = stubs()["far.away"].other
    stub = StubObject("Context", counts=3)
    assert stub.counts == 3
    with pytest.raises(AttributeError, match=r"stub Context has no attribute 'other'"):
        _ = stub.other
    with pytest.raises(AttributeError, match=r"stub Context is read-only: 'counts'"):
        stub.counts = 4
    assert getattr(stub, "other", 5) == 5


def test_a_module_sees_stubs_and_leaves_no_trace(tmp_path: Path) -> None:
    before = dict(sys.modules)
    module = load_source(write(tmp_path, ASSERTING), "an_engine", stubs(), optimize=False)
    assert module.check(1) == 7
    assert sys.modules == before


def test_what_the_stubs_hide_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = StubModule("far.away", thing=1)
    monkeypatch.setitem(sys.modules, "far.away", real)
    before = dict(sys.modules)
    load_source(write(tmp_path, ASSERTING), "an_engine", stubs(), optimize=False)
    with pytest.raises(ZeroDivisionError):
        load_source(write(tmp_path, "import far.away\n1 / 0\n"), "an_engine", stubs(), optimize=False)
    assert sys.modules == before
    assert sys.modules["far.away"] is real


def test_parents_hold_their_stubs(tmp_path: Path) -> None:
    source = "import far.away\nimport far.away as a\nfrom far import away as b\nok = far.away is a is b\n"
    assert load_source(write(tmp_path, source), "an_engine", stubs(), optimize=False).ok


@pytest.mark.parametrize(
    "source", ["from far.away import other", "import far.off", "from far.away.deep import x"]
)
def test_an_import_that_no_stub_answers_fails(tmp_path: Path, source: str) -> None:
    with pytest.raises(ImportError):
        load_source(write(tmp_path, source), "an_engine", stubs(), optimize=False)


def test_modules_are_their_own_and_may_define_dataclasses(tmp_path: Path) -> None:
    source = (
        "from __future__ import annotations\nfrom dataclasses import dataclass, KW_ONLY\n"
        "@dataclass\nclass A:\n    x: int\n    _: KW_ONLY\n    y: int = 1\nseen = []\n"
    )
    path = write(tmp_path, source)
    one, two = (load_source(path, "an_engine", {}, optimize=False) for _ in range(2))
    one.seen.append(1)
    assert two.seen == []
    assert one.A(3).y == 1


def test_optimize_drops_assertions(tmp_path: Path) -> None:
    path = write(tmp_path, ASSERTING)
    assert load_source(path, "an_engine", stubs(), optimize=True).check(0) == 7
    with pytest.raises(AssertionError):
        load_source(path, "an_engine", stubs(), optimize=False).check(0)


def test_assertions_stay_under_python_o(tmp_path: Path) -> None:
    path = write(tmp_path, "def check():\n    assert False\n")
    script = (
        "import sys, pathlib\n"
        "from routeproof_conformance.engines.stubs import load_source\n"
        "if __debug__: sys.exit('not optimized')\n"
        f"path = pathlib.Path({str(path)!r})\n"
        "load_source(path, 'e', {}, optimize=True).check()\n"
        "try: load_source(path, 'e', {}, optimize=False).check()\n"
        "except AssertionError: sys.exit(0)\n"
        "sys.exit('no assertion')\n"
    )
    done = subprocess.run([sys.executable, "-O", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_changed_file_is_compiled_again(tmp_path: Path) -> None:
    assert load_source(write(tmp_path, "x = 1"), "an_engine", {}, optimize=False).x == 1
    assert load_source(write(tmp_path, "x = 1 + 1"), "an_engine", {}, optimize=False).x == 2


@pytest.mark.parametrize("source", ["def", "\0"])
def test_a_file_that_does_not_compile(tmp_path: Path, source: str) -> None:
    with pytest.raises(EngineError, match="does not compile here"):
        load_source(write(tmp_path, source), "an_engine", {}, optimize=False)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot be read"):
        load_source(tmp_path / "none.py", "an_engine", {}, optimize=False)


def test_threads_load_side_by_side(tmp_path: Path) -> None:
    source = (
        "import time, sys\nfrom far.away import thing\ntime.sleep(0.01)\nmine = sys.modules[__name__].thing\n"
    )
    path = write(tmp_path, source)
    before = dict(sys.modules)
    got: dict[int, int] = {}

    def load(number: int) -> None:
        given = {"far.away": StubModule("far.away", thing=number)}
        got[number] = load_source(path, "an_engine", given, optimize=False).mine

    threads = [threading.Thread(target=load, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert got == {number: number for number in range(8)}
    assert sys.modules == before
