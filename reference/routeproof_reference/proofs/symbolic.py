"""Z3 terms that take part in Python's arithmetic; code is run on them along all its paths (`paths`).

A comparison gives a `Bool`; where the code asks for its truth, the exploration settles it.
"""

import builtins
import importlib
import operator
from collections.abc import Callable
from typing import Any, Union

from routeproof_reference.proofs.obligation import OpenError, UnknownShapeError


def z3() -> Any:  # noqa: ANN401 - the package has no types
    """Import the solver, or raise OpenError that says what to install."""
    try:
        return importlib.import_module("z3")
    except ImportError as error:
        raise OpenError(f"Z3 is not installed: pip install 'routeproof[prove]' ({error})") from error


class Space:
    """Shared by the terms of one exploration: each term once, quotients, and their axioms."""

    def __init__(self) -> None:
        """Start without any."""
        self.z3 = z3()
        self.axioms: list[Any] = []
        self.decide: Callable[[Any, Any], builtins.bool] | None = None
        """Takes a truth and its opposite, and settles it for the run in progress."""
        self._made: dict[tuple[Any, ...], Any] = {}
        self._constants: dict[int, bool | None] = {}
        self._negated: dict[int, Any] = {}
        self._factors: dict[int, tuple[Int, Int]] = {}
        self._opaque: dict[tuple[int, int], Int] = {}
        self._kept: list[Any] = []

    def int(self, name: str) -> "Int":
        """Make a variable."""
        return Int(self, self.z3.Int(name))

    def bool(self, name: str) -> "Bool":
        """Make a truth variable."""
        return Bool(self, self.z3.Bool(name))

    def lift(self, value: object) -> "Symbol":
        """Make a number or truth a symbol."""
        if isinstance(value, (Int, Bool)):
            return value
        if not isinstance(value, int):
            raise UnknownShapeError(f"a {type(value).__name__} where a number was expected")
        key = (type(value), value)
        if key not in self._made:
            true = isinstance(value, bool)
            self._made[key] = Bool(self, self.z3.BoolVal(value)) if true else Int(self, self.z3.IntVal(value))
        made: Symbol = self._made[key]
        return made

    def term(self, value: object) -> Any:  # noqa: ANN401
        """Give the Z3 term of a number or a truth."""
        return self.lift(value).term

    def join(self, kind: type, op: Callable[[Any, Any], Any], left: "Symbol", other: object) -> Any:  # noqa: ANN401
        """Apply an operation once per pair of terms."""
        right = self.lift(other)
        key = (op, left.id, right.id)
        if key not in self._made:
            self._kept += [left, right]
            self._made[key] = kind(self, op(left.term, right.term))
        return self._made[key]

    def name_product(self, left: "Int", right: "Int", name: str) -> "Int":
        """Let a variable stand for a product, so that all stays linear; its axioms are the caller's."""
        made = self.int(name)
        self._opaque[left.id, right.id] = made
        return made

    def product(self, left: "Int", other: object) -> "Int":
        """Multiply, and remember the factors for an exact division later."""
        right = self.lift(other)
        for pair in ((left.id, right.id), (right.id, left.id)):
            if pair in self._opaque:
                return self._opaque[pair]
        made: Int = self.join(Int, operator.mul, left, other)
        if isinstance(right, Int):
            self._factors[made.id] = (left, right)
        return made

    def quotient(self, left: "Int", other: object) -> "Int":
        """Divide, rounding down; raise UnknownShapeError on a path whose divisor can be zero or negative."""
        divisor = self.lift(other)
        if not (isinstance(divisor, Int) and divisor > 0):
            raise UnknownShapeError("a division by a number that is not positive")
        return self.divide(left, other)

    def divide(self, left: "Int", other: object) -> "Int":
        """Divide by what the caller knows to be positive, rounding down."""
        right = self.lift(other)
        first, second = self._factors.get(left.id, (None, None))
        if first is not None and second is not None and right.id in (first.id, second.id):
            return second if right.id == first.id else first
        key = ("quotient", left.id, right.id)
        if key not in self._made:
            self._kept += [left, right]
            made = Int(self, self.z3.Int(f"quotient!{len(self._made)}"))
            low = right.term * made.term
            exact = self.z3.And(low <= left.term, left.term < low + right.term)
            self.axioms.append(self.z3.Implies(right.term > 0, exact))
            self._made[key] = made
        found: Int = self._made[key]
        return found

    def truth(self, term: Any) -> "builtins.bool":  # noqa: ANN401
        """Decide a truth for the path in progress."""
        key = term.get_id()
        if key not in self._constants:
            self._kept.append(term)
            plain = self.z3.simplify(term)
            sure = self.z3.is_true(plain) or self.z3.is_false(plain)
            self._constants[key] = bool(self.z3.is_true(plain)) if sure else None
            self._negated[key] = self.z3.Not(term)
        constant = self._constants[key]
        if constant is not None:
            return constant
        if self.decide is None:
            raise UnknownShapeError("a symbolic truth was asked for outside an exploration")
        return self.decide(term, self._negated[key])


class _Symbol:
    """A Z3 term that takes part in Python's arithmetic."""

    __slots__ = ("id", "space", "term")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, space: Space, term: Any) -> None:  # noqa: ANN401
        """Wrap a term."""
        self.space = space
        self.term = term
        self.id: int = term.get_id()

    def __format__(self, spec: str) -> str:
        return "?"

    def __str__(self) -> str:
        """Stand for itself in an error message; terms are slow to print."""
        return "?"

    __repr__ = __str__

    def __eq__(self, other: object) -> "Bool":  # type: ignore[override]
        found: Bool = self.space.join(Bool, operator.eq, self, other)  # type: ignore[arg-type]
        return found

    def __ne__(self, other: object) -> "Bool":  # type: ignore[override]
        found: Bool = self.space.join(Bool, operator.ne, self, other)  # type: ignore[arg-type]
        return found


class Bool(_Symbol):
    """A truth that forks the run where the code asks for it."""

    def __bool__(self) -> bool:
        return self.space.truth(self.term)

    def __and__(self, other: object) -> "Bool":
        found: Bool = self.space.join(Bool, self.space.z3.And, self, other)
        return found

    def __or__(self, other: object) -> "Bool":
        found: Bool = self.space.join(Bool, self.space.z3.Or, self, other)
        return found

    def __xor__(self, other: object) -> "Bool":
        found: Bool = self.space.join(Bool, self.space.z3.Xor, self, other)
        return found

    __rand__, __ror__, __rxor__ = __and__, __or__, __xor__


class Int(_Symbol):
    """An integer of any size; comparisons give a `Bool`."""

    def __add__(self, other: object) -> "Int":
        found: Int = self.space.join(Int, operator.add, self, other)
        return found

    def __sub__(self, other: object) -> "Int":
        found: Int = self.space.join(Int, operator.sub, self, other)
        return found

    def __rsub__(self, other: object) -> "Int":
        return self * -1 + other

    def __neg__(self) -> "Int":
        return self * -1

    def __mul__(self, other: object) -> "Int":
        return self.space.product(self, other)

    def __floordiv__(self, other: object) -> "Int":
        return self.space.quotient(self, other)

    def __mod__(self, other: object) -> "Int":
        return self - (self // other) * other

    def __lt__(self, other: object) -> Bool:
        found: Bool = self.space.join(Bool, operator.lt, self, other)
        return found

    def __le__(self, other: object) -> Bool:
        found: Bool = self.space.join(Bool, operator.le, self, other)
        return found

    def __gt__(self, other: object) -> Bool:
        found: Bool = self.space.join(Bool, operator.gt, self, other)
        return found

    def __ge__(self, other: object) -> Bool:
        found: Bool = self.space.join(Bool, operator.ge, self, other)
        return found

    def __bool__(self) -> bool:
        return bool(self != 0)

    __radd__, __rmul__ = __add__, __mul__


Symbol = Union[Int, Bool]  # noqa: UP007 - both are defined above
