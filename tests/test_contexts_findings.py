"""The table of findings in vLLM's contexts says what the scripts say, where the files are in the cache."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from routeproof_conformance.contexts.files import VLLM_FILES
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cached, fetch_command

from tests.test_engines_sglang_findings import RUNNER

FINDINGS = Path(__file__).resolve().parent.parent / "docs" / "findings"
FOLDER = FINDINGS / "context"
README = (FINDINGS / "README.md").read_text("utf-8").partition("## The context that vLLM builds")[2]
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
VERSIONS = ("0.31.0", "0.32.0", "0.33.0")
ROWS = re.findall(r"^\| \[(\w+)\]\(context/\1\.py\) \|(.*)\|$", README, re.MULTILINE)
STATES = {name: tuple(cell.strip() for cell in rest.split("|")[1:4]) for name, rest in ROWS}


def root(version: str) -> Path:
    try:
        return cached("vllm", version, VLLM_FILES).root
    except EngineError as error:
        if os.environ.get("ROUTEPROOF_REQUIRE_PUBLISHED") == "1":
            pytest.fail(str(error))
        pytest.skip(f"not fetched: run `{fetch_command('vllm', version)}`")


@pytest.fixture(scope="module", params=VERSIONS)
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A version, and the folder with what every script printed on it."""
    folder = tmp_path_factory.mktemp("context-findings")
    scripts = [str(FOLDER / f"{script}.py") for script in SCRIPTS]
    order = json.dumps([scripts, str(root(request.param)), str(folder)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", RUNNER]
    subprocess.run(command, input=order, text=True, check=True, timeout=600, env=environment)
    return request.param, folder


def test_the_table_lists_every_script_and_version() -> None:
    assert f"| finding | rules | {' | '.join(VERSIONS)} | accepted twin |" in README
    assert sorted(STATES) == SCRIPTS
    assert {state for states in STATES.values() for state in states} == {"present", "absent"}


@pytest.mark.published
@pytest.mark.parametrize("version", VERSIONS)
def test_the_digests_are_those_of_the_files(version: str) -> None:
    named = re.findall(rf"^\| {re.escape(version)} \| `(.*)` \| `(\w+)` \|$", README, re.MULTILINE)
    assert len(named) == 4
    for file, digest in named:
        assert hashlib.sha256((root(version) / file).read_bytes()).hexdigest() == digest


@pytest.mark.published
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_finds_what_the_table_says(ran: tuple[str, Path], script: str) -> None:
    version, folder = ran
    printed = (folder / f"{script}.py.out").read_text("utf-8")
    assert (folder / f"{script}.py.err").read_text("utf-8") == ""
    assert [line.split(":")[0] for line in printed.splitlines()] == ["handed in", "expected", "got"]
    code = int((folder / f"{script}.py.code").read_text("utf-8"))
    assert code == {"present": 1, "absent": 0}[STATES[script][VERSIONS.index(version)]], printed


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_stands_alone(script: str) -> None:
    source = (FOLDER / f"{script}.py").read_text("utf-8")
    assert "routeproof" not in source
    assert "assert " not in source
    assert len(source.splitlines()) < 80
