"""Running CrossHair on contracts and on pairs of functions, and reading what it says."""

import importlib.util
import subprocess

from routeproof_reference.proofs import child
from routeproof_reference.proofs.obligation import Check, OpenError, Status

CONFIRMED = "Confirmed over all paths"
EXHAUSTED = "All paths exhausted"
BUDGET = 40.0
"""Seconds per condition, and for a comparison."""


def require(*modules: str) -> None:
    """Raise OpenError where one of the modules is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise OpenError(f"{', '.join(missing)} is not installed: pip install 'routeproof[prove]'")


def _crosshair(*arguments: str) -> str:
    """Run it; raise OpenError where it is missing, does not end, or breaks."""
    require("crosshair", "z3")
    try:
        done = child.run("crosshair.main", *arguments, timeout=4 * BUDGET)
    except subprocess.TimeoutExpired as error:
        raise OpenError(f"CrossHair did not end in {4 * BUDGET:.0f} s") from error
    if done.returncode not in (0, 1):  # 1: it found a counterexample, or a difference
        last = (done.stderr.splitlines() or done.stdout.splitlines() or ["no message"])[-1]
        raise OpenError(f"CrossHair ended with exit code {done.returncode}: {last}")
    return done.stdout + done.stderr


def check_contracts(module: str, functions: tuple[str, ...]) -> Check:
    """Establish contracts: every one confirmed over all paths."""
    names = [f"{module}.{function}" for function in functions]
    budget = f"--per_condition_timeout={BUDGET:.0f}"
    said = _crosshair("check", *names, "--analysis_kind=PEP316", "--report_all", budget)
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if ": error:" in line]
    if errors:
        return Check(Status.REFUTED, errors[0].split(": error:", 1)[1].strip())
    confirmed = sum(CONFIRMED in line for line in lines)
    if confirmed < len(functions):
        return Check(Status.OPEN, f"{confirmed} of {len(functions)} confirmed: {' / '.join(lines)[:300]}")
    return Check(Status.ESTABLISHED, f"{confirmed} contracts, all paths")


def same(module: str, one: str, other: str) -> Check:
    """Establish that two functions agree on all paths."""
    said = _crosshair(
        "diffbehavior", f"{module}.{one}", f"{module}.{other}", f"--per_condition_timeout={BUDGET:.0f}"
    )
    if "Given" in said:
        return Check(Status.REFUTED, " ".join(said.split())[:300])
    if EXHAUSTED in said:
        return Check(Status.ESTABLISHED, "all paths")
    return Check(Status.OPEN, f"not all paths in {BUDGET:.0f} s: {' '.join(said.split())[:200]}")
