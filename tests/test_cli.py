"""The command line: exit codes, one clear message for a wrong call, and reports that can be acted on."""

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from routeproof_conformance import __main__ as start
from routeproof_conformance import campaign
from routeproof_conformance.cases import all_cases, select
from routeproof_conformance.cli import app
from routeproof_conformance.contexts.scenarios import all_scenarios
from routeproof_conformance.worlds.available import Availability
from routeproof_spec import SPEC_VERSION, Verdict
from routeproof_spec.rules import RULES
from typer.testing import CliRunner, Result

SIX = "LAY-02/six-tokens[tp=2,dp=1,N=6]"
SHARD = "tests.faulty_engines:WritesOnlyItsShard"
ROOT = Path(__file__).parents[1]


def call(*words: str) -> Result:
    result = CliRunner().invoke(app, words)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    assert "Traceback" not in result.output
    return result


def run(engine: str, *words: str) -> Result:
    return call("run", "--engine", engine, "--world", "simulated", "--jobs", "1", *words)


# --- exit codes


def test_0_where_nothing_failed() -> None:
    result = run("reference", "--case", SIX)
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1] == "conformant"
    assert not result.stderr


def test_1_where_a_must_failed() -> None:
    result = run(SHARD, "--case", SIX)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "non-conformant"
    assert "failing: BUF-01, LAY-02" in result.stdout


def test_0_where_only_a_should_failed() -> None:
    result = run("reference", "--case", "COL-03/layers[tp=2,dp=1,T=5]")
    assert result.exit_code == 0
    assert "not kept, though only SHOULD: COL-04" in result.stdout


def test_2_where_the_adapter_is_broken() -> None:
    result = run("tests.faulty_engines:TypeErrorForGroups", "--rule", "LAY-08", "--topology", "tp2dp2")
    assert result.exit_code == 2
    assert result.stdout.splitlines()[-1] == "error"
    assert "broken adapter or stub: dp0/tp0, step 1, capture of layer 0: TypeError" in result.stdout


def test_3_where_nothing_ran() -> None:
    result = run("tests.toy_engines:Unreadable", "--case", "LAY-10/padded-local-at-dp*")
    assert result.exit_code == 3
    assert result.stdout.splitlines()[-1] == "nothing-ran"
    assert "needs the capabilities declared-layouts" in result.stdout


def test_3_where_the_world_cannot_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "availability", lambda _world, _ranks: Availability("no GPU is visible"))
    result = call("run", "--engine", "reference", "--world", "nccl", "--case", SIX)
    assert result.exit_code == 3
    assert "nccl: not run: no GPU is visible" in result.stdout


SKIPPED = ("acme:Whole", "--case", "BUF-03/layer[tp=1,dp=1,*layer=-1]")


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize(("require", "code"), [("partial", 0), ("conformant", 3)])
def test_partial_is_enough_unless_more_is_required(require: str, code: int) -> None:
    result = run(*SKIPPED, "--require", require)
    assert result.stdout.splitlines()[-1] == "partial"
    assert "names no `sources`" in result.stdout
    assert result.exit_code == code


def test_conformant_is_enough_where_it_is_required() -> None:
    assert run("reference", "--case", SIX, "--require", "conformant").exit_code == 0


# --- engines that cannot be had

ACME = """
import sys
from tests.toy_engines import PerLayerCapturer, ToyEngine

class Whole(ToyEngine):
    sources = ()

class Constructor(ToyEngine):
    def __init__(self): raise OSError("no such device")

class Create(ToyEngine):
    def create(self, config, rank, comm): raise RuntimeError("no group yet")

class Begins(ToyEngine):
    class capturer(PerLayerCapturer):
        def begin_step(self, step): raise AttributeError("no attribute 'ubatch'")

class Exits(ToyEngine):
    def create(self, config, rank, comm): sys.exit(0)

class NoProfile:
    def create(self, config, rank, comm): ...

def function(): ...
"""


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> object:
    (tmp_path / "acme.py").write_text(ACME)
    (tmp_path / "acme_exits.py").write_text("raise SystemExit(0)")
    (tmp_path / "acme_broken.py").write_text("import no_such_module_of_acme")
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("acme", None)


NOT_TO_BE_HAD = {
    "no-such-engine": "unknown engine 'no-such-engine': expected one of routeproof, reference, vllm",
    "vllm==0.1.0": "vLLM 0.1.0 has no adapter: supported are 0.",
    "vllm==0.33.99": "run `routeproof engines fetch vllm==0.33.99`",
    "acme_missing:Whole": "module 'acme_missing' cannot be imported: ModuleNotFoundError",
    "acme_broken:Whole": "No module named 'no_such_module_of_acme' (is it on PYTHONPATH?)",
    "acme_exits:Whole": "module 'acme_exits' cannot be imported: SystemExit",
    "acme:Missing": "module 'acme' has no class 'Missing'",
    "acme:function": "module 'acme' has no class 'function'",
    "acme:NoProfile": "NoProfile() needs `profile`, an EngineProfile (got NoneType), and a method `create`",
    "acme:Constructor": "Constructor() raised OSError: no such device",
    "acme:Create": "create raised RuntimeError: no group yet (tp1, 24 tokens, before any case)",
    "acme:Begins": "begin_step raised AttributeError: no attribute 'ubatch'",
    "acme:Exits": "create raised SystemExit: 0",
}


@pytest.mark.usefixtures("acme")
@pytest.mark.parametrize("engine", NOT_TO_BE_HAD)
def test_an_engine_that_cannot_be_had_is_told_once(engine: str) -> None:
    result = run(engine, "--rule", "LAY-02", "--topology", "tp2")
    assert result.exit_code == 2
    assert not result.stdout
    assert result.stderr.startswith("routeproof: ")
    assert len(result.stderr.splitlines()) == 1
    assert NOT_TO_BE_HAD[engine] in result.stderr


WRONG = {
    "--case LAY-02/six-tokes[tp=2,dp=1,N=6]": f"six-tokes[tp=2,dp=1,N=6]; is it {SIX}?",
    "--rule NOT": "--rule NOT: no such rule; `routeproof list rules` lists them",
    "--rule GAT-01": "no case matches --rule GAT-01; `routeproof list cases` lists them",
    "--topology tp97": "no case matches --topology tp97",
    f"--case {SIX} --topology tp4": f"no case matches --case {SIX} --topology tp4",
    "--topology 2x2": "--topology: topology '2x2' is not spelt like tp2, dp2 or tp2dp2",
    "--topology tp2,,dp2": "--topology: topology '' is not spelt like",
    "--world mars": "--world mars: unknown world 'mars'; there are simulated, gloo, nccl",
    "--debug-rank 0": "--debug-rank needs one case",
    f"--debug-rank 2 --case {SIX}": "--debug-rank 2: tp2 has ranks 0 to 1",
}


@pytest.mark.parametrize("words", WRONG)
def test_a_wrong_call_is_told_with_what_would_be_right(words: str) -> None:
    result = call("run", "--engine", "reference", *words.split())
    assert result.exit_code == 2
    assert not result.stdout
    assert WRONG[words] in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("words", ["--jobs 0", "--timeout 0", "--require much", "--no-such-option"])
def test_a_value_out_of_range_is_a_wrong_call(words: str) -> None:
    result = call("run", *words.split())
    assert result.exit_code == 2
    assert not result.stdout


# --- reports


def test_json_is_one_document_and_nothing_else() -> None:
    result = run(SHARD, "--case", "LAY-02/*[tp=2,dp=1,*", "--json")
    assert not result.stderr
    told = json.loads(result.stdout)
    assert result.exit_code == 1
    assert told["engine"] == SHARD
    assert told["engine_version"] == "1"
    assert told["engine_digest"] == "0" * 64
    assert told["spec_version"] == SPEC_VERSION
    assert told["verdict"] == "non-conformant"
    assert set(told["counts"]) == {verdict.value for verdict in Verdict}
    assert sum(told["counts"].values()) == len(told["findings"])
    keys = {"case", "rule", "level", "world", "topology", "verdict", "message"}
    assert all(keys == set(item) for item in told["findings"])
    ids = {case.id for case in select("LAY-02/*[tp=2,dp=1,*")}
    assert {item["case"] for item in told["findings"]} == ids
    assert all(item["message"] for item in told["findings"] if item["verdict"] != "passed")


def test_json_of_a_wrong_call_is_no_document() -> None:
    result = run("reference", "--rule", "NOT", "--json")
    assert result.exit_code == 2
    assert not result.stdout
    assert result.stderr


def test_a_failure_can_be_acted_on() -> None:
    told = run(SHARD, "--case", SIX).stdout
    assert f"{SIX}  topology tp2, world simulated" in told
    assert "numbers from vLLM #61388" in told
    assert "failed LAY-02 (MUST): step 1, publisher dp0/tp0: 6 rows differ" in told
    assert "step 1: TP_SHARD, T [6], R [6]; handed over: dp0/tp0-1 [3, 2]" in told
    assert "published row 3, layer 0: expected [6, 7], got [7, 2] (real row 3" in told


def test_the_rerun_command_runs_that_case_alone() -> None:
    told = run(SHARD, "--rule", "LAY-02", "--topology", "tp2").stdout
    commands = re.findall(r"^  rerun: routeproof (.*)$", told, re.MULTILINE)
    assert len(commands) > 5
    for command in commands[:3]:
        words = shlex.split(command)
        again = json.loads(call(*words, "--json").stdout)
        assert {item["case"] for item in again["findings"]} == {words[-1]}
        assert again["verdict"] == "non-conformant"
        assert again["cases"] == 1


def test_jobs_do_not_change_what_is_found() -> None:
    words = ("run", "--engine", SHARD, "--world", "simulated", "--topology", "tp2", "--json")
    one, two = (json.loads(_process(*words, "--jobs", jobs).stdout) for jobs in ("1", "2"))
    assert one == two


# --- the other commands


def test_list_rules_names_all_and_what_covers_them() -> None:
    told = json.loads(call("list", "rules", "--json").stdout)
    assert [item["id"] for item in told] == list(RULES)
    assert all(item["covered"] for item in told)
    text = call("list", "rules").stdout
    assert all(number in text for number in RULES)


def test_list_cases_names_all() -> None:
    ids = [*(case.id for case in all_cases()), *(scenario.id for scenario in all_scenarios())]
    assert call("list", "cases").stdout.splitlines() == ids
    few = json.loads(call("list", "cases", "--rule", "LAY-08", "--topology", "tp2dp2", "--json").stdout)
    assert few == [case.id for case in all_cases() if "LAY-08" in case.rules and case.topology.size == 4]
    assert call("list", "cases", "--rule", "GAT-01").exit_code == 2


def test_list_engines_names_the_built_in_ones() -> None:
    told = call("list", "engines").stdout
    for name in ("routeproof", "reference", "vllm==0.33.0", "package.module:Class"):
        assert re.search(rf"^{re.escape(name)}\s+\S", told, re.MULTILINE)
    assert set(json.loads(call("list", "engines", "--json").stdout)) >= {"routeproof", "reference"}


def test_explain_tells_a_rule_in_full() -> None:
    told = call("explain", "lay-02").stdout
    rule = RULES["LAY-02"]
    assert "LAY-02 MUST own rows, in token order" in told
    assert f"statement: {rule.statement}" in told
    assert f"why: {rule.rationale}" in told
    assert "run: routeproof run --rule LAY-02" in told
    assert "nothing to run yet" in call("explain", "GAT-01").stdout
    wrong = call("explain", "LAY-99")
    assert wrong.exit_code == 2
    assert "is it LAY-0" in wrong.stderr


def test_schema_is_a_json_schema_of_every_model() -> None:
    told = json.loads(call("schema").stdout)
    assert set(told) >= {"Rule", "Case", "Observation", "Finding", "EngineProfile"}
    for name, schema in told.items():
        assert "$ref" in schema or schema["type"] == "object", name
        for ref in re.findall(r'"\$ref": "#/\$defs/(\w+)"', json.dumps(schema)):
            assert ref in schema["$defs"]


# --- processes


def _process(*words: str, optimized: bool = False) -> "subprocess.CompletedProcess[str]":
    flags = ["-O"] if optimized else []
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    return subprocess.run(
        [sys.executable, *flags, "-m", "routeproof_conformance", *words],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize("engine", ["reference", "routeproof", "tests.faulty_engines:TakesNegativeLayers"])
def test_the_verdict_is_the_same_without_assertions(engine: str) -> None:
    """Under python -O, too, every check of the suite itself is at work."""
    words = (
        "run",
        "--engine",
        engine,
        "--world",
        "simulated",
        "--rule",
        "BUF-03",
        "--topology",
        "tp2",
        "--json",
    )
    plain, optimized = _process(*words), _process(*words, optimized=True)
    assert json.loads(plain.stdout)["counts"]["passed"] > 0
    assert (plain.returncode, plain.stdout) == (optimized.returncode, optimized.stdout)
    assert plain.returncode == int("faulty" in engine)


def test_a_reader_that_leaves_early_gets_no_traceback() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "routeproof_conformance", "list", "cases"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        process.stdout.close()
        process.wait(timeout=60)
        assert "Traceback" not in process.stderr.read()


def test_an_interrupt_while_modules_load_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Loading(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "routeproof_conformance.cli", Loading("cli"))
    with pytest.raises(SystemExit, match="3"):
        start.main()
    assert capsys.readouterr().err == "routeproof: interrupted\n"
