"""The capturers side by side: one run, the same ranks and inputs, engines taking turns."""

import importlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from routeproof_spec import Layout

from routeproof_conformance.bench_ranks import EXPERTS, TOP_K, Job, Point, rank_main
from routeproof_conformance.engines import EngineError, load
from routeproof_conformance.worlds import WorldError
from routeproof_conformance.worlds.available import availability
from routeproof_conformance.worlds.zygote import Zygote

BASE = "vllm==0.33.0"
ENGINES = ("routeproof", "routeproof-per-layer", BASE, "sglang==0.5.23")
WIDE = 140
"""Columns of the table where there is no terminal."""
PATIENCE_SECONDS = 600.0
"""How long the ranks may be silent."""

Row = dict[str, Any]


def points(sizes: list[int], tokens: list[int], layers: list[int]) -> list[Point]:
    """List what is compared: whole batches, and shards where there are several TP ranks."""
    found = [Point(tp, count, depth, Layout.FULL) for tp in sizes for depth in layers for count in tokens]
    found += [
        Point(tp, count, depth, Layout.TP_SHARD)
        for tp in sizes
        if tp > 1
        for depth in layers
        for count in tokens
    ]
    return found


def loadable(names: tuple[str, ...] = ENGINES) -> tuple[tuple[str, ...], list[str]]:
    """Give the engines that can be loaded here, and a note on each that cannot."""
    found, notes = [], []
    for name in names:
        try:
            load(name)
        except EngineError as error:
            notes.append(f"{name}: left out: {error}")
        else:
            found.append(name)
    return tuple(found), notes


def measure(
    wanted: list[Point], engines: tuple[str, ...], seconds: float, tell: Callable[[str], None]
) -> list[Row]:
    """Measure all points, a pool of ranks for each TP size; raise WorldError if ranks fail."""
    reason = availability("gloo", max(point.tp for point in wanted)).reason
    if reason:
        raise WorldError(reason)
    importlib.import_module("torch")
    zygote = Zygote(rank_main)
    rows: list[Row] = []
    try:
        for tp in sorted({point.tp for point in wanted}):
            mine = tuple(point for point in wanted if point.tp == tp)
            for point, found in zip(mine, _pool(zygote, mine, engines, seconds), strict=True):
                rows += _rows(point, found)
                tell(f"tp {tp}, {point.tokens} tokens, {point.layers} layers, {point.layout}")
    finally:
        zygote.close()
    return rows


def _pool(
    zygote: Zygote, mine: tuple[Point, ...], engines: tuple[str, ...], seconds: float
) -> Iterator[list[dict[str, dict[str, Any]]]]:
    """Give for each point what every rank saw."""
    folder = Path(tempfile.mkdtemp(prefix="routeproof-bench-"))
    tp = mine[0].tp
    pids, lines = zygote.fork(tp, Job(tp, mine, engines, folder, seconds))
    try:
        for point in mine:
            found = []
            for number, line in enumerate(lines):
                if not line.poll(PATIENCE_SECONDS):
                    raise WorldError(f"rank {number} is silent at {point}")
                try:
                    seen = line.recv()
                except EOFError as error:
                    raise WorldError(f"rank {number} ended at {point}") from error
                if isinstance(seen, str):
                    raise WorldError(f"rank {number} failed at {point}: {seen}")
                found.append(seen)
            yield found
    finally:
        for line in lines:
            line.close()
        zygote.reap(pids)
        shutil.rmtree(folder, ignore_errors=True)


def _rows(point: Point, found: list[dict[str, dict[str, Any]]]) -> list[Row]:
    """Make the rows of a point: times of the publisher, bytes of all ranks together."""
    publisher = found[0]
    base = publisher.get(BASE)
    made = []
    for name, seen in publisher.items():
        row = {
            "engine": name,
            "tp": point.tp,
            "tokens": point.tokens,
            "layout": str(point.layout),
            "layers": point.layers,
            **seen,
            "wire_bytes": sum(rank[name]["wire_bytes"] for rank in found),
            "device_bytes": max(rank[name]["device_bytes"] for rank in found),
        }
        row["ratio_to_vllm"] = _ratio(seen, base, "median_ms")
        row["layer_call_ratio_to_vllm"] = _ratio(seen, base, "layer_call_us")
        made.append(row)
    return made


def _ratio(seen: Row, base: Row | None, field: str) -> float | None:
    """Compare a time; None where one of the two is missing."""
    if base is None or base[field] is None or seen[field] is None:
        return None
    return float(seen[field] / base[field])


def document(rows: list[Row], notes: list[str]) -> str:
    """Give all of it as JSON."""
    torch = importlib.import_module("torch")
    return json.dumps(
        {
            "about": {
                "routeproof": version("routeproof"),
                "torch": torch.__version__,
                "backend": "gloo, one thread a rank",
                "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
                "load": round(os.getloadavg()[0], 2),
                "top_k": TOP_K,
                "experts": EXPERTS,
                "median_ms": "layer calls, end of step, rows on the host, at the publisher",
                "ratio_to_vllm": f"median_ms over that of {BASE} in the same run: 0.1 is ten times as fast",
                "wire_bytes": "sent in a step, all ranks together",
                "device_bytes": "held for the capture by the rank that holds most",
            },
            "notes": notes,
            "rows": rows,
        },
        indent=1,
    )


def show(out: Console, rows: list[Row], notes: list[str]) -> None:
    """Print a table."""
    if not out.is_terminal:
        out = Console(file=out.file, width=WIDE)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("layout", "tp", "layers", "T", "engine"):
        table.add_column(name, justify="right" if name in ("tp", "layers", "T") else "left")
    for name in ("ms a step", "to vLLM", "us a call", "to vLLM", "collectives", "wire", "device"):
        table.add_column(name, justify="right")
    last: tuple[Any, ...] = ()
    for row in rows:
        place = (row["layout"], str(row["tp"]), str(row["layers"]), str(row["tokens"]))
        first = place if place != last else ("", "", "", "")
        last = place
        table.add_row(
            *first,
            row["engine"],
            "" if row["median_ms"] is None else f"{row['median_ms']:.3f}",
            _times(row["ratio_to_vllm"]),
            "" if row["layer_call_us"] is None else f"{row['layer_call_us']:.2f}",
            _share(row["layer_call_ratio_to_vllm"]),
            str(row["collectives"]),
            _size(row["wire_bytes"]),
            _size(row["device_bytes"]),
        )
    out.print(table)
    problems = {f"{row['engine']}: {row['problem']}" for row in rows if row["problem"]}
    for note in [*notes, *sorted(problems)]:
        out.print(note, highlight=False)


def _times(ratio: float | None) -> str:
    if ratio is None:
        return ""
    return f"{1 / ratio:.1f}x" if ratio < 1 else f"1/{ratio:.1f}x" if ratio > 1 else "1x"


def _share(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.2f}"


def _size(count: int) -> str:
    for unit, size in (("MB", 1_000_000), ("kB", 1_000)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
