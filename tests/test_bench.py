"""The benchmark: what it counts, what it writes, and how it refuses. No time is judged."""

import json
import subprocess
import sys
from xml.dom.minidom import parseString

import pytest
from routeproof_conformance import bench
from routeproof_conformance.bench_plot import panels, picture
from routeproof_conformance.bench_ranks import Point
from routeproof_spec import Layout

FIELDS = {
    "engine",
    "tp",
    "tokens",
    "layout",
    "layers",
    "median_ms",
    "layer_call_us",
    "quartiles_ms",
    "steps",
    "collectives",
    "wire_bytes",
    "device_bytes",
    "problem",
    "ratio_to_vllm",
    "layer_call_ratio_to_vllm",
}


def command(*arguments, cwd):
    return subprocess.run(
        [sys.executable, "-m", "routeproof_conformance", "bench", *arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=300,
        check=False,
    )


def is_svg(text):
    return parseString(text).documentElement.tagName == "svg"  # noqa: S318 - our own


def test_a_small_run(tmp_path):
    got = command(
        *(
            "--tp",
            "1,2",
            "--tokens",
            "1,10",
            "--layers",
            "3",
            "--seconds",
            "0.05",
            "--plot",
            "out.svg",
            "--json",
        ),
        cwd=tmp_path,
    )
    assert got.returncode == 0, got.stderr
    document = json.loads(got.stdout)
    rows = {(row["engine"], row["layout"], row["tp"], row["tokens"]): row for row in document["rows"]}
    assert all(set(row) == FIELDS for row in rows.values())
    assert not [row for row in rows.values() if row["problem"]]
    assert all(row["steps"] >= 12 and row["median_ms"] > 0 for row in rows.values())
    places = [("FULL", 1), ("FULL", 2), ("TP_SHARD", 2)]
    for (layout, tp), tokens in ((place, tokens) for place in places for tokens in (1, 10)):
        own = rows["routeproof", layout, tp, tokens]
        gathers = layout == "TP_SHARD" and tokens > 1
        assert own["collectives"] == int(gathers)
        assert own["wire_bytes"] == (16 * -(-(16 + 5 * 3 * 8) // 16) if gathers else 0)
        assert rows["routeproof-per-layer", layout, tp, tokens]["collectives"] == 3 * gathers
        theirs = rows.get((bench.BASE, layout, tp, tokens))
        if theirs is None:
            assert own["ratio_to_vllm"] is None
            continue
        assert theirs["ratio_to_vllm"] == theirs["layer_call_ratio_to_vllm"] == 1
        assert own["ratio_to_vllm"] == own["median_ms"] / theirs["median_ms"]
        assert theirs["collectives"] == 3 * gathers
        assert theirs["wire_bytes"] == (3 * 2 * 5 * 8 * 4 if gathers else 0)
    missing = {note.partition(":")[0] for note in document["notes"]}
    assert {row["engine"] for row in document["rows"]} | missing == set(bench.ENGINES)
    assert is_svg((tmp_path / "out.svg").read_text())


def test_a_table_is_the_default(tmp_path):
    got = command("--tp", "1", "--tokens", "2", "--layers", "2", "--seconds", "0.02", cwd=tmp_path)
    assert got.returncode == 0, got.stderr
    assert "routeproof" in got.stdout
    assert "collectives" in got.stdout
    assert (tmp_path / "routeproof-bench.svg").is_file()


def test_an_engine_that_fails_at_a_point_is_told_and_the_others_go_on(tmp_path):
    """SGLang's shards of an odd step do not fit its buffer of as many rows."""
    got = command(
        *("--tp", "2", "--tokens", "9", "--layers", "2", "--seconds", "0.02", "--json"),
        cwd=tmp_path,
    )
    assert got.returncode == 0, got.stderr
    for row in json.loads(got.stdout)["rows"]:
        failed = row["engine"].startswith("sglang") and row["layout"] == "TP_SHARD"
        assert (row["median_ms"] is None) == bool(row["problem"]) == failed, row


@pytest.mark.parametrize("arguments", [("--tp", "0"), ("--tokens", "x"), ("--layers", "-1"), ("--tp", "")])
def test_numbers_that_are_none(arguments, tmp_path):
    got = command(*arguments, cwd=tmp_path)
    assert got.returncode == 2
    assert "expected positive numbers" in got.stderr


def test_an_engine_that_cannot_be_loaded_is_left_out_and_named():
    found, notes = bench.loadable(("routeproof", "vllm==0.1.0"))
    assert found == ("routeproof",)
    assert len(notes) == 1
    assert notes[0].startswith("vllm==0.1.0: left out: ")


def test_what_is_compared():
    found = bench.points([1, 2], [4], [6])
    assert found == [
        Point(1, 4, 6, Layout.FULL),
        Point(2, 4, 6, Layout.FULL),
        Point(2, 4, 6, Layout.TP_SHARD),
    ]


def test_panels_grow_along_tokens_layers_and_ranks():
    rows = [
        {
            "engine": name,
            "tp": tp,
            "tokens": tokens,
            "layout": "FULL",
            "layers": layers,
            "median_ms": 1.0 + tokens,
        }
        for name in ("routeproof", "vllm==0.33.0")
        for tp in (1, 2, 4)
        for tokens in (1, 64)
        for layers in (15, 30, 60)
    ]
    found = panels(rows)
    assert {panel.axis for panel in found} == {"tokens of a step", "captured layers", "TP ranks"}
    assert all(set(panel.lines) == {"routeproof", "vllm==0.33.0"} for panel in found)
    text = picture(rows)
    assert is_svg(text)
    assert text.count("<polyline") == 2 * len(found)
    assert is_svg(picture([]))
