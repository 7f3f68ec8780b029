"""The table of SGLang's findings says what the scripts say, where the files are in the cache."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from routeproof_conformance.engines.errors import EngineError
from routeproof_conformance.engines.fetch import cached, fetch_command
from routeproof_conformance.engines.sglang import FETCHED, PACKAGE, PUBLISHED

FINDINGS = Path(__file__).resolve().parent.parent / "docs" / "findings"
FOLDER = FINDINGS / "sglang"
README = (FINDINGS / "README.md").read_text("utf-8").partition("## SGLang")[2]
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem != "drive")
STATES = dict(
    re.findall(r"^\| \[(\w+)\]\(sglang/\1\.py\) \| [^|]+ \| (present|absent) \|", README, re.MULTILINE)
)
RUNNER = """
import json, os, runpy, sys, torch, traceback
scripts, root, out = json.load(sys.stdin)
sys.path.insert(0, os.path.dirname(scripts[0]))
for script in scripts:
    name = os.path.join(out, os.path.basename(script))
    if os.fork() == 0:
        for stream, suffix in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{suffix}", os.O_CREAT | os.O_WRONLY), stream)
        sys.argv, code = [script, root], 99
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as stop:
            code = int(stop.code or 0)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    with open(f"{name}.code", "w") as file:
        file.write(str(os.waitstatus_to_exitcode(os.wait()[1])))
"""


@pytest.fixture(scope="module")
def root() -> Path:
    """The published files, out of the cache; skips if they are not there."""
    try:
        return cached(PACKAGE, PUBLISHED[-1], FETCHED).root
    except EngineError as error:
        if os.environ.get("ROUTEPROOF_REQUIRE_PUBLISHED") == "1":
            pytest.fail(str(error))
        pytest.skip(f"not fetched: run `{fetch_command(PACKAGE, PUBLISHED[-1])}`")


@pytest.fixture(scope="module")
def out(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What every script printed, each in a process forked from one that has imported torch alone."""
    folder = tmp_path_factory.mktemp("sglang-findings")
    order = json.dumps([[str(FOLDER / f"{script}.py") for script in SCRIPTS], str(root), str(folder)])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", RUNNER]
    subprocess.run(command, input=order, text=True, check=True, timeout=600, env=environment)
    return folder


def test_the_table_lists_every_script_of_the_version() -> None:
    assert "| finding | rules | 0.5.23 | accepted twin |" in README
    assert PUBLISHED == ("0.5.23",)
    assert sorted(STATES) == SCRIPTS


@pytest.mark.published
def test_the_digests_are_those_of_the_files(root: Path) -> None:
    for file in FETCHED:
        assert f"| `{file}` | `{hashlib.sha256((root / file).read_bytes()).hexdigest()}` |" in README


@pytest.mark.published
@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_finds_what_the_table_says(out: Path, script: str) -> None:
    printed = (out / f"{script}.py.out").read_text("utf-8")
    assert (out / f"{script}.py.err").read_text("utf-8") == ""
    assert [line.split(":")[0] for line in printed.splitlines()] == ["handed in", "expected", "got"]
    code = int((out / f"{script}.py.code").read_text("utf-8"))
    assert code == {"present": 1, "absent": 0}[STATES[script]], printed


@pytest.mark.parametrize("script", [*SCRIPTS, "drive"])
def test_a_script_stands_alone(script: str) -> None:
    source = (FOLDER / f"{script}.py").read_text("utf-8")
    assert "routeproof" not in source
    assert "assert " not in source
    assert len(source.splitlines()) < 100


RUNNER_OF = "self.decode_cuda_graph_runner"


@pytest.mark.published
@pytest.mark.parametrize(
    ("script", "file", "old", "new"),
    [
        (
            "slots_counted_in_requests",
            "model_runner.py",
            f'cuda_graph_batch=getattr({RUNNER_OF}, "bs", None)',
            f"cuda_graph_batch={RUNNER_OF}.bs * {RUNNER_OF}.captured_req_width",
        ),
        (
            "decode_extent_in_a_prefill_graph",
            "model_runner.py",
            "                can_run_graph = True\n",
            "                pass\n",
        ),
    ],
)
def test_a_corrected_caller_is_no_finding(
    root: Path, tmp_path: Path, script: str, file: str, old: str, new: str
) -> None:
    for each in FETCHED:
        (tmp_path / each).parent.mkdir(parents=True, exist_ok=True)
        text = (root / each).read_text("utf-8")
        if each.endswith(f"/{file}"):
            assert old in text
            text = text.replace(old, new)
        (tmp_path / each).write_text(text, "utf-8")
    command = [sys.executable, str(FOLDER / f"{script}.py"), str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
