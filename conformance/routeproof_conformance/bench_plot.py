"""The benchmark as a picture: SVG, without a library."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, RIGHT = 330, 230, 58, 34, 40, 12
COLUMNS = 3
COLOURS = {
    "routeproof": "#0b6e4f",
    "routeproof-per-layer": "#7fb069",
    "vllm": "#c1440e",
    "sglang": "#5b5f97",
}


class Panel(NamedTuple):
    """One diagram: a line for each engine, both axes logarithmic."""

    title: str
    axis: str
    lines: dict[str, list[tuple[float, float]]]


def panels(rows: Sequence[dict[str, Any]]) -> list[Panel]:
    """Give time against tokens, for each layout, TP size and depth; then against layers and TP size."""
    rows = [row for row in rows if row["median_ms"] is not None]
    found = _against(rows, "tokens", "tokens of a step", ("layout", "tp", "layers"))
    found += _against(rows, "layers", "captured layers", ("layout", "tp", "tokens"))
    return found + _against(rows, "tp", "TP ranks", ("layout", "tokens", "layers"))


def _against(
    rows: Sequence[dict[str, Any]], axis: str, label: str, fixed: tuple[str, str, str]
) -> list[Panel]:
    made = []
    for key in dict.fromkeys(tuple(row[name] for name in fixed) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in fixed) == key]
        if len({row[axis] for row in mine}) < (2 if axis == "tokens" else 3):
            continue
        lines: dict[str, list[tuple[float, float]]] = {}
        for row in mine:
            lines.setdefault(row["engine"], []).append((row[axis], row["median_ms"]))
        words = {"tp": "tp {}", "layers": "{} layers", "tokens": "T {}", "layout": "{}"}
        title = ", ".join(words[name].format(value) for name, value in zip(fixed, key, strict=True))
        made.append(Panel(title, label, {name: sorted(line) for name, line in lines.items()}))
    return made


def picture(rows: Sequence[dict[str, Any]]) -> str:
    """Draw all panels."""
    drawn = panels(rows)
    engines = list(dict.fromkeys(row["engine"] for row in rows))
    high = HEIGHT * max(1, math.ceil(len(drawn) / COLUMNS)) + 30
    wide = WIDTH * min(COLUMNS, max(1, len(drawn)))
    body = [
        _panel(panel, index % COLUMNS * WIDTH, index // COLUMNS * HEIGHT) for index, panel in enumerate(drawn)
    ]
    legend = [
        f'<g transform="translate({LEFT + 150 * index},{high - 14})"><rect width="14" height="4" y="-6" '
        f'fill="{_colour(name)}"/><text x="20">{escape(name)}</text></g>'
        for index, name in enumerate(engines)
    ]
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" '
        f'viewBox="0 0 {wide} {high}" font-family="sans-serif" font-size="11" fill="#222">\n'
        f'<rect width="{wide}" height="{high}" fill="#fff"/>\n' + "\n".join(body + legend) + "\n</svg>\n"
    )


def _colour(name: str) -> str:
    return COLOURS.get(name, COLOURS.get(name.partition("==")[0], "#888"))


def _panel(panel: Panel, x: int, y: int) -> str:
    across = [point[0] for line in panel.lines.values() for point in line]
    times = [point[1] for line in panel.lines.values() for point in line]
    floor, ceiling = math.floor(math.log10(min(times))), math.ceil(math.log10(max(times)))
    ceiling = max(ceiling, floor + 1)
    low, high = math.log(min(across)), math.log(max(across))

    def place(point: tuple[float, float]) -> str:
        right = LEFT + (math.log(point[0]) - low) / (high - low) * (WIDTH - LEFT - RIGHT)
        part = (math.log10(point[1]) - floor) / (ceiling - floor)
        return f"{right:.1f},{HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM):.1f}"

    parts = [
        f'<g transform="translate({x},{y})">',
        f'<text x="{LEFT}" y="20" font-weight="bold">{escape(panel.title)}</text>',
    ]
    for power in range(floor, ceiling + 1):
        at = place((min(across), 10.0**power)).partition(",")[2]
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{at}" y2="{at}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{float(at) + 4:.1f}" text-anchor="end">{10.0**power:g} ms</text>'
        )
    for value in sorted(set(across)):
        at = place((value, min(times))).partition(",")[0]
        parts.append(f'<text x="{at}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2:.0f}" y="{HEIGHT - BOTTOM + 31}" text-anchor="middle" '
        f'fill="#666">{escape(panel.axis)}</text>'
    )
    for name, line in panel.lines.items():
        places = " ".join(place(point) for point in line)
        parts.append(f'<polyline points="{places}" fill="none" stroke="{_colour(name)}" stroke-width="2"/>')
        for point in line:
            right, _, down = place(point).partition(",")
            parts.append(f'<circle cx="{right}" cy="{down}" r="2.5" fill="{_colour(name)}"/>')
    return "".join([*parts, "</g>"])
