"""Time of the proofs against the size of the box and against the TP size, as an SVG.

`python benchmarks/prove_growth.py docs/prove_growth.svg` measures processor time and draws.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from routeproof_reference.proofs import box, smt
from routeproof_reference.proofs.faults import ReferenceTarget

TARGET = ReferenceTarget()
COUNTS = (2, 3, 4, 5, 6, 8)
TP_SIZES = (1, 2, 4, 8, 16, 32, 48, 64)
REPEAT = 1
WIDTH, HEIGHT, MARGIN = 380, 260, 48


def seconds(work: Callable[[], object]) -> float:
    """Give the least processor time of a few runs."""
    best = float("inf")
    for _ in range(REPEAT):
        start = time.process_time()
        work()
        best = min(best, time.process_time() - start)
    return best


def panel(x: int, title: str, across: str, points: list[tuple[int, float]], right: str = "") -> str:
    """Draw one curve."""
    few = 10
    wide, high = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    last, top = max(at for at, _ in points), max(value for _, value in points) or 1.0
    place = [(MARGIN + wide * at / last, HEIGHT - MARGIN - high * value / top) for at, value in points]
    line = " ".join(f"{a:.1f},{b:.1f}" for a, b in place)
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in place)
    marks = "".join(
        f'<text x="{a:.1f}" y="{HEIGHT - MARGIN + 14}" text-anchor="middle">{at}</text>'
        for (a, _), (at, _) in zip(place, points, strict=True)
        if len(points) < few or at in (1, 8, 16, 32, 48, 64)
    )
    return (
        f'<g transform="translate({x},0)"><text x="{MARGIN}" y="22" font-weight="bold">{title}</text>'
        f'<path d="M{MARGIN} {MARGIN}V{HEIGHT - MARGIN}H{WIDTH - MARGIN}" fill="none" stroke="#888"/>'
        f'<text x="{MARGIN - 6}" y="{MARGIN + 4}" text-anchor="end">{top:.2g} s</text>'
        f'<text x="{MARGIN - 6}" y="{HEIGHT - MARGIN}" text-anchor="end">0</text>{marks}'
        f'<text x="{WIDTH // 2}" y="{HEIGHT - 12}" text-anchor="middle">{across}</text>'
        f'<text x="{WIDTH - MARGIN}" y="{MARGIN - 8}" text-anchor="end">{right}</text>'
        f'<polyline points="{line}" fill="none" stroke="#2a6fb0" stroke-width="1.5"/>'
        f'<g fill="#2a6fb0">{dots}</g></g>'
    )


def main(path: Path) -> None:
    """Measure, draw, and print the figures."""
    boxes = []
    for largest in COUNTS:
        bounds = box.Bounds(largest, 3, (1, 2, 3, 4))
        boxes.append((largest, seconds(lambda bounds=bounds: box.enumerate_box(TARGET, bounds))))
        print("counts <=", largest, f"{boxes[-1][1]:.2f} s", flush=True)
    proofs = [(tp, seconds(lambda tp=tp: smt.prove(TARGET, "own-rows", (tp,)))) for tp in TP_SIZES]
    anything = seconds(lambda: smt.prove(TARGET, "own-rows", (None,)))
    print("tp", proofs, "any", anything)
    body = panel(0, "Enumeration: DP up to 3, TP 1..4, every n", "largest count", boxes)
    body += panel(WIDTH, "SMT: own-rows, all counts", "TP size", proofs, f"any TP size: {anything:.2f} s")
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{2 * WIDTH}" height="{HEIGHT}"'
    path.write_text(f'{head} font-family="sans-serif" font-size="11">{body}</svg>\n', "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
