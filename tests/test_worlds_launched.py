"""Ranks launched by torchrun: the same cases, reported by rank 0."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def agent(port, node, nodes, per_node, *options):
    """Start one torchrun agent, as on one of several machines."""
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"),
            *("--master-port", str(port), "--nnodes", str(nodes), "--node-rank", str(node)),
            *("--nproc-per-node", str(per_node), "-m", "routeproof_conformance.rank", *options),
        ],
        env={**os.environ, "PYTHONPATH": str(HERE), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    out, err = process.communicate(timeout=180)
    return process.returncode, out, err


def test_two_agents_on_loopback_judge_tp2dp2():
    port = free_port()
    options = ("--topology", "tp2dp2", "--rule", "LAY-04", "--json")
    agents = [agent(port, node, 2, 2, *options) for node in range(2)]
    (code, out, err), (other, silent, _) = [finish(process) for process in agents]
    assert (code, other) == (0, 0), err
    report = json.loads(out)
    assert report["verdict"] == "conformant"
    assert report["worlds"] == ["torchrun-gloo"]
    assert {item["topology"] for item in report["findings"]} == {"tp2dp2"}
    assert report["cases"] >= 36
    assert silent == ""


def test_a_rank_that_is_lost_is_a_finding_and_cuts_the_run_short():
    options = ("--topology", "tp2", "--case", "LAY-03/shards[tp=2,dp=1,T=*,padded=0]", "--timeout", "2")
    code, out, err = finish(
        agent(free_port(), 0, 1, 2, *options, "--engine", "drill_engines:Raises", "--json")
    )
    assert code != 0, err
    report = json.loads(out)
    assert report["verdict"] == "non-conformant"
    assert "launch again without it" in report["cut_short"]
    failed = {item["case"] for item in report["findings"] if item["verdict"] == "failed"}
    assert failed == {"LAY-03/shards[tp=2,dp=1,T=9,padded=0]"}


def test_a_wrong_number_of_ranks_is_told_once():
    code, out, err = finish(agent(free_port(), 0, 1, 1, "--topology", "tp2", "--rule", "LAY-03"))
    assert code != 0
    assert out == ""
    assert err.count("1 ranks were launched, tp2 has 2") == 1


def test_without_a_launcher_it_says_how():
    done = subprocess.run(
        [sys.executable, "-m", "routeproof_conformance.rank", "--topology", "tp2"],
        env={name: value for name, value in os.environ.items() if name != "RANK"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2
    assert "launch with torchrun" in done.stderr
