"""What an obligation is, and what became of it."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple


class Method(StrEnum):
    """How an obligation is established."""

    BOX = "enumeration"
    """Every input within bounds, through the code itself."""

    SMT = "SMT"
    """Z3 over the paths of the code itself; no bounds on counts."""

    CROSSHAIR = "CrossHair"
    """Symbolic execution by CrossHair, all paths."""

    HYPOTHESIS = "Hypothesis"
    """Drawn inputs, shrunk on failure."""

    PROTOCOL = "state search"
    """Every interleaving of ranks, layers and steps."""

    DIFFERENTIAL = "differential"
    """Two implementations on the same tensors."""

    EXECUTION = "execution"
    """The code itself where the fault would raise."""


class Status(StrEnum):
    """From harmless to fatal."""

    ESTABLISHED = "established"
    REFUTED = "refuted"
    """There is a counterexample."""
    OPEN = "open"
    """Its tool is missing, ran out of time or answered "unknown", or a control was not refuted."""
    ERROR = "error"
    """What was to be examined has another shape than is known here."""


class Obligation(NamedTuple):
    """One claim, and what it takes to establish it."""

    id: str
    rules: tuple[str, ...]
    statement: str
    method: Method
    scope: str
    controls: tuple[str, ...]
    """Planted faults that the method must refute; without that it establishes nothing."""
    must: bool = True
    """False: a fact about producers out of contract, reported for information."""
    deep: bool = False
    """Only with `--deep`."""


class Counterexample(NamedTuple):
    """Inputs that refute a claim, in numbers."""

    counts: tuple[int, ...]
    """Physical tokens per DP rank."""
    dp_rank: int
    tp: int
    tp_rank: int
    n: int
    layout: str
    """What was emitted; empty: n fits no layout."""
    sizes: tuple[int, ...] | None
    """Shard sizes as told."""
    declared: str
    """The layout declared, if any."""
    layouts: tuple[str, ...] = ()
    """The configured set; empty: the default."""
    said: str = ""
    """What the code decided, and what is right."""

    def __str__(self) -> str:
        """Say it in one line."""
        parts = [f"counts {self.counts}", f"tp {self.tp}", f"DP rank {self.dp_rank}", f"n = {self.n}"]
        if self.layout:
            parts.append(f"emitted {self.layout}")
        if self.tp_rank:
            parts.append(f"TP rank {self.tp_rank}")
        if self.sizes is not None:
            parts.append(f"shard sizes {self.sizes}")
        if self.declared:
            parts.append(f"declared {self.declared}")
        if self.layouts:
            parts.append(f"set {{{', '.join(self.layouts)}}}")
        return f"{', '.join(parts)}: {self.said}"


@dataclass(frozen=True)
class Check:
    """What one run of a method said about one subject, faulty on purpose or not."""

    status: Status
    detail: str = ""
    """Cases, theorems or states; or why it is open."""
    counterexample: Counterexample | None = None
    vacuous: tuple[str, ...] = ()
    """Parts of the claim whose assumptions nothing satisfies."""


@dataclass(frozen=True)
class Result:
    """One row of the table."""

    obligation: str
    target: str
    status: Status
    detail: str = ""
    refuted: tuple[str, ...] = ()
    """Controls that were refuted, as they must be."""
    missed: tuple[str, ...] = ()
    """Controls that were not."""
    counterexample: Counterexample | None = None
    confirmed: str = ""
    """What the real code did with the counterexample."""
    replay: str = ""
    """A command that does it again."""
    seconds: float = 0.0
    notes: tuple[str, ...] = field(default=())


class OpenError(Exception):
    """A tool cannot settle the question: missing, too slow, or "unknown"."""


class UnknownShapeError(BaseException):
    """Code under examination asks for what the harness does not know; that code must not catch it."""


def judge(
    obligation: Obligation,
    target: str,
    examine: Callable[[str], Check],
    controls: tuple[str, ...] | None = None,
) -> Result:
    """Examine the subject, then every planted fault.

    Args:
        obligation: what is claimed.
        target: name of the code examined.
        examine: gives the check of the subject (called with "") or of a planted fault by its name.
        controls: planted faults, where the target has others than the obligation lists.

    """
    check = _attempt(examine, "")
    if check.status is Status.ERROR:
        return Result(obligation.id, target, check.status, check.detail)
    planted = obligation.controls if controls is None else controls
    seen = {name: _attempt(examine, name) for name in planted}
    refuted = tuple(name for name, found in seen.items() if found.status is Status.REFUTED)
    missed = tuple(name for name in planted if name not in refuted)
    status, detail = check.status, check.detail
    if status is Status.ESTABLISHED and (check.vacuous or missed or not planted):
        status = Status.OPEN
        why = [f"nothing satisfies its assumptions: {', '.join(check.vacuous)}"] if check.vacuous else []
        why += [f"planted fault not refuted: {name} ({seen[name].detail})" for name in missed]
        detail = "; ".join(why or ["it has no negative control"])
    return Result(obligation.id, target, status, detail, refuted, missed, check.counterexample)


def _attempt(examine: Callable[[str], Check], fault: str) -> Check:
    try:
        return examine(fault)
    except OpenError as error:
        return Check(Status.OPEN, str(error))
    except UnknownShapeError as error:
        return Check(Status.ERROR, str(error))
