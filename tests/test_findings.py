"""The table of findings says what the scripts say, for every published file that is in the cache."""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cached
from routeproof_conformance.engines.vllm import FILE, PACKAGE, PUBLISHED

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "findings"
README = (FOLDER / "README.md").read_text("utf-8")
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))


def table() -> dict[str, tuple[str, ...]]:
    """State per version, by finding."""
    lines = re.findall(r"^\| \[(\w+)\]\(\1\.py\) \|(.*)\|$", README, re.MULTILINE)
    return {name: tuple(cell.strip() for cell in rest.split("|")[1:-1]) for name, rest in lines}


PLAIN = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
RUNNER = """
import json, os, runpy, sys, torch, traceback
for script, path, out in json.load(sys.stdin):
    if os.fork() == 0:
        for stream, suffix in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{out}.{suffix}", os.O_CREAT | os.O_WRONLY), stream)
        sys.argv, code = [script, path], 99
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)  # without taking torch down, which takes longer than the script
    with open(f"{out}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.wait()[1])))
"""


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], tuple[int, str, str]]:
    """Exit code, output and error output of every script on every version that is there.

    Each runs in a process of its own, forked from one that has imported torch and nothing else.
    """
    folder = tmp_path_factory.mktemp("findings")
    jobs = []
    for version in PUBLISHED:
        try:
            path = cached(PACKAGE, version, (FILE,)).path(FILE)
        except EngineError:
            continue
        jobs += [(script, version, path) for script in SCRIPTS]
    orders = [
        (str(FOLDER / f"{script}.py"), str(path), str(folder / f"{script}-{version}"))
        for script, version, path in jobs
    ]
    command = [sys.executable, "-c", RUNNER]
    if not orders:
        return {}
    subprocess.run(command, input=json.dumps(orders), text=True, check=True, timeout=300, env=PLAIN)
    return {
        (script, version): (
            int((folder / f"{script}-{version}.code").read_text()),
            (folder / f"{script}-{version}.out").read_text(),
            (folder / f"{script}-{version}.err").read_text(),
        )
        for script, version, _ in jobs
    }


def test_the_table_lists_every_script_and_version() -> None:
    header = re.search(r"^\| finding \| rules \| (.*) \| accepted twin \|$", README, re.MULTILINE)
    assert header is not None
    assert tuple(header[1].split(" | ")) == PUBLISHED
    assert sorted(table()) == SCRIPTS
    assert {state for states in table().values() for state in states} == {"present", "absent"}


@pytest.mark.published
@pytest.mark.parametrize("version", PUBLISHED)
def test_the_digests_are_those_of_the_files(vllm_file: Callable[[str], Path], version: str) -> None:
    digest = hashlib.sha256(vllm_file(version).read_bytes()).hexdigest()
    assert f"| {version} | `{digest}` |" in README


@pytest.mark.published
@pytest.mark.parametrize("version", PUBLISHED)
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_finds_what_the_table_says(vllm_file, outcomes, script: str, version: str) -> None:
    vllm_file(version)
    code, out, errors = outcomes[script, version]
    assert errors == ""
    assert [line.split(":")[0] for line in out.splitlines()] == ["handed in", "expected", "got"]
    assert code == {"present": 1, "absent": 0}[table()[script][PUBLISHED.index(version)]], out


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_stands_alone(script: str) -> None:
    source = (FOLDER / f"{script}.py").read_text("utf-8")
    assert "routeproof" not in source
    assert "assert " not in source
    assert len(source.splitlines()) < 60


@pytest.mark.parametrize("source", ["class RoutedExpertsCapturer: pass", "from vllm.unheard_of import thing"])
def test_a_file_that_the_script_does_not_know_is_no_finding(source: str, tmp_path: Path) -> None:
    path = tmp_path / "capturer.py"
    path.write_text(source)
    command = [sys.executable, "-W", "error", str(FOLDER / f"{SCRIPTS[0]}.py"), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=PLAIN)
    assert "Traceback" in done.stderr
    assert done.stdout == ""
