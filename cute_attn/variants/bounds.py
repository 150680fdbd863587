"""Lower and upper bounds of integers over a block of scores, as expressions of its corners.

Bounds are exact integers: an expression whose value may leave 32 bits is one of 64 ("i64"), one
that may leave 62 is no bound. i32 of the trace are taken not to overflow, as in C++.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, TypeGuard

import numpy as np

from cute_attn.variants.domain import EVERYWHERE
from cute_attn.variants.expression import ARGUMENTS, Expression, argument, constant, load, node
from cute_attn.variants.interval import INT_MAX, INT_MIN, Interval
from cute_attn.variants.operations import OPERATIONS
from cute_attn.variants.polynomial import polynomial
from cute_attn.variants.ranges import POSITIONS, RangeTable

if TYPE_CHECKING:
    from cute_attn.variants.blocks import Truth

Bounds = tuple[Expression | None, Expression | None]
"""(at least, at most); None: not known."""

NOTHING: Bounds = (None, None)
RANGES = {
    "h": ("h_first", "h_last"),
    "q_idx": ("q_first", "q_last"),
    "kv_idx": ("kv_first", "kv_last"),
}
"""Corners of a block: what an argument is between. The request is one, `b`."""

_WIDEST = 2.0**62
_SHORTEST_BLOCK = 16  # keys, in any kernel


class BoundsMaker:
    """Makes bounds.

    Args:
        scalars: what scalars are between, by name.
        taken: names that tables of ranges must not have.

    Attributes:
        tables: the tables of ranges that bounds read, by tensor, pools and what varies.
        truth: gives the test of a bool expression; integers may depend on truth values.
    """

    def __init__(self, scalars: Mapping[str, Interval], taken: Iterable[str] = ()) -> None:
        self.tables: dict[tuple[object, ...], RangeTable] = {}
        self._taken = set(taken)
        self.truth: Callable[[Expression], Truth]
        self._scalars = scalars
        self._limits: dict[Expression, Interval] = {}  # what our own expressions are between
        self._found: dict[Expression, Bounds] = {}

    def of(self, x: Expression) -> Bounds:
        """Bounds of an i32 expression of the trace."""
        if x not in self._found:
            self._found[x] = self._make(x)
        return self._found[x]

    def uniform(self, x: Expression) -> Expression | None:
        """A value that all scores of a block share, but for floats: the kernel may round them
        otherwise in the mask."""
        if x.reads & set(RANGES) or any(part.kind == "f32" for part in x.walk()):
            return None
        return self._renamed(x)

    def _renamed(self, x: Expression) -> Expression:
        if x.op == "scalar":
            return self._known(node("scalar", (), x.kind, f"params.{x.value}"), self._limits_of(x))
        if x.is_leaf:
            return self._known(x, self._limits_of(x))
        args = tuple(self._renamed(arg) for arg in x.args)
        new = load(x.value, x.kind, args) if x.op == "load" else node(x.op, args, x.kind, x.value)
        if x.kind == "i32":
            return self._known(new, self._fit(self._interval(x.op, args)))
        return new

    def _limits_of(self, leaf: Expression) -> Interval:
        if leaf.is_constant:
            return float(leaf.value), float(leaf.value)
        name = str(leaf.value)
        return self._scalars.get(name, EVERYWHERE.get(name, (INT_MIN, INT_MAX)))

    def _known(self, x: Expression, limits: Interval) -> Expression:
        self._limits[x] = limits
        return x

    def _interval(self, op: str, args: tuple[Expression, ...]) -> Interval:
        if op == "load" or any(arg.kind == "bool" for arg in args):
            return INT_MIN, INT_MAX
        with np.errstate(all="ignore"):
            low, high = OPERATIONS[op].interval(*(self.limits(arg) for arg in args))
        return float(low), float(high)

    @staticmethod
    def _fit(x: Interval) -> Interval:
        return max(x[0], INT_MIN), min(x[1], INT_MAX)

    def limits(self, x: Expression) -> Interval:
        """What one of the maker's expressions is between, whatever the block."""
        if x.is_constant:
            return float(x.value), float(x.value)
        return self._limits[x]

    def number(self, value: int) -> Bounds:
        if not INT_MIN <= value <= INT_MAX:
            return NOTHING
        return constant(value), constant(value)

    # Of the trace.

    def _make(self, x: Expression) -> Bounds:
        if (same := self.uniform(x)) is not None:
            return same, same
        if x.op == "argument":
            low, high = RANGES[str(x.value)]
            limits = EVERYWHERE[str(x.value)]
            return self._corner(low, limits), self._corner(high, limits)
        if x.op == "to_i32" and x.args[0].kind == "bool":
            test = self.truth(x.args[0])
            return self._number_of(test.all), self._number_of(test.some)
        if x.op == "where":
            return self._where(*x.args)
        if x.op == "load":
            return self.element(x)
        rule: Callable[..., Bounds] | None = getattr(self, f"_{x.op}", None)
        if rule is None:
            return NOTHING
        operands = [self.of(arg) for arg in x.args]
        if x.op == "mod" and _has_short_chunks(*x.args):
            operands[0] = NOTHING
        return rule(*operands)

    def element(self, x: Expression) -> Bounds:
        """Of an element of an i32 or bool tensor, over all indices of a block; as i32."""
        indices: list[Expression] = []
        pools, varies = [], []
        for arg in x.args:
            low, high = self.narrow(self.of(arg))
            if low is None or high is None:
                return NOTHING
            varies.append(low is not high)
            pools.append(_pool(arg))
            indices += [low, high] if varies[-1] else [low]
        if not any(varies):
            return NOTHING
        table = self._table(str(x.value), x.kind, tuple(pools), tuple(varies))
        found = node("range", tuple(indices), "range", table.name)
        limits = (INT_MIN, INT_MAX) if x.kind == "i32" else (0.0, 1.0)
        low, high = (self._known(node(side, (found,), "i32"), limits) for side in ("least", "most"))
        return low, high

    def _table(
        self, tensor: str, kind: str, pools: tuple[int, ...], varies: tuple[bool, ...]
    ) -> RangeTable:
        key = (tensor, kind, pools, varies)
        if key not in self.tables:
            name, number = f"{tensor}_ranges", 1
            while name in self._taken:
                name, number = f"{tensor}_ranges_{number}", number + 1
            self._taken.add(name)
            self.tables[key] = RangeTable(name, *key)
        return self.tables[key]

    def _corner(self, name: str, limits: Interval) -> Expression:
        return self._known(node("argument", (), "i32", name), limits)

    def _number_of(self, truth: Expression) -> Expression:
        if truth.is_constant:
            return constant(int(truth.value))
        return self._known(node("to_i32", (truth,), "i32"), (0.0, 1.0))

    def _where(self, condition: Expression, x: Expression, y: Expression) -> Bounds:
        test, a, b = self.truth(condition), self.of(x), self.of(y)
        both = self._least(a[0], b[0]), self._most(a[1], b[1])
        if test.all is test.some:  # one of the two
            return self._choice(test.all, a[0], b[0]), self._choice(test.all, a[1], b[1])
        low, high = (
            self._choice(test.some, self._choice(test.all, a[i], both[i]), b[i]) for i in range(2)
        )
        return low, high

    def _choice(
        self, condition: Expression, x: Expression | None, y: Expression | None
    ) -> Expression | None:
        if condition.is_constant:
            return x if condition.value else y
        if x is None or y is None or x is y:
            return x if x is y else None
        kind = "i64" if "i64" in (x.kind, y.kind) else "i32"
        (a, b), (c, d) = self.limits(x), self.limits(y)
        return self._known(node("where", (condition, x, y), kind), (min(a, c), max(b, d)))

    def add(self, x: Bounds, y: Bounds) -> Bounds:
        return self._compute("add", x[0], y[0]), self._compute("add", x[1], y[1])

    _add = add

    def _neg(self, x: Bounds) -> Bounds:
        return self._compute("neg", x[1]), self._compute("neg", x[0])

    def _sub(self, x: Bounds, y: Bounds) -> Bounds:
        return self._compute("sub", x[0], y[1]), self._compute("sub", x[1], y[0])

    def _mul(self, x: Bounds, y: Bounds) -> Bounds:
        return self.mul(self.narrow(x), self.narrow(y))

    def mul(self, x: Bounds, y: Bounds) -> Bounds:
        """The product of two numbers that need not be i32 of the trace."""
        if not _is_known(x) or not _is_known(y):
            return NOTHING
        if x[0] is x[1]:
            x, y = y, x
        if y[0] is y[1]:
            products = [self._compute("mul", side, y[0]) for side in x]
            if x[0] is x[1]:
                return products[0], products[0]
            low, high = self.limits(y[0])
            if low >= 0 or high <= 0:
                return (products[0], products[1]) if low >= 0 else (products[1], products[0])
            return self._least(*products), self._most(*products)
        corners = [self._compute("mul", a, b) for a in x for b in y]
        low, high = (
            (self._least(a, b), self._most(a, b)) for a, b in (corners[:2], corners[2:])
        )  # fmt: skip
        return self._least(low[0], high[0]), self._most(low[1], high[1])

    def _lshift(self, x: Bounds, y: Bounds) -> Bounds:
        return self._mul(x, self._power(y))

    def _rshift(self, x: Bounds, y: Bounds) -> Bounds:
        return self._floordiv(x, self._power(y))

    def _power(self, y: Bounds) -> Bounds:
        if y[0] is None or not y[0].is_constant or not 0 <= int(y[0].value) < 31:
            return NOTHING
        return self.number(1 << int(y[0].value))

    def _floordiv(self, x: Bounds, y: Bounds) -> Bounds:
        x, y = self.narrow(x), self.narrow(y)
        if not _is_known(x) or not _is_known(y):
            return NOTHING
        low, high = ([self._compute("floordiv", a, b) for b in dict.fromkeys(y)] for a in x)
        if self.limits(y[0])[0] > 0:  # rises with x
            return self._least(*low), self._most(*high)
        if y[0] is not y[1]:
            return NOTHING
        return self._least(*low, *high), self._most(*low, *high)

    def _mod(self, x: Bounds, y: Bounds) -> Bounds:
        x, y = self.narrow(x), self.narrow(y)
        if y[0] is None or y[1] is None:
            return NOTHING
        zero = constant(0)
        low = self._least(self._compute("add", y[0], constant(1)), zero)
        high = self._most(self._compute("sub", y[1], constant(1)), zero)
        if not _is_known(x) or y[0] is not y[1]:
            return low, high
        first, last = (self._compute("floordiv", side, y[0]) for side in x)
        if first is None or last is None:
            return low, high
        same = node("eq", (first, last), "bool")
        low = self._choice(same, self._compute("mod", x[0], y[0]), low)
        return low, self._choice(same, self._compute("mod", x[1], y[0]), high)

    def _abs(self, x: Bounds) -> Bounds:
        below = self._compute("neg", x[0]), self._compute("neg", x[1])
        least: Expression | None = constant(0)
        for side in (x[0], below[1]):
            if side is not None:
                least = self._most(least, side)
        return least, self._most(x[1], below[0])

    def _min(self, x: Bounds, y: Bounds) -> Bounds:
        high = x[1] if y[1] is None else y[1] if x[1] is None else self._least(x[1], y[1])
        return self._least(x[0], y[0]), high

    def _max(self, x: Bounds, y: Bounds) -> Bounds:
        low = x[0] if y[0] is None else y[0] if x[0] is None else self._most(x[0], y[0])
        return low, self._most(x[1], y[1])

    def _bit_and(self, x: Bounds, y: Bounds) -> Bounds:
        """With an operand that is not negative, between 0 and it."""
        bounded = [
            side[1]
            for side in (x, y)
            if side[0] is not None and self.limits(side[0])[0] >= 0 and side[1] is not None
        ]
        return (constant(0), self._least(*bounded)) if bounded else NOTHING

    def _bit_not(self, x: Bounds) -> Bounds:
        return self._sub(self.number(-1), x)

    # Of bounds.

    def compare(self, op: str, x: Expression, y: Expression) -> Expression:
        """`x op y`; a constant where no block makes a difference."""
        always, ever = OPERATIONS[op].interval(self.limits(x), self.limits(y))
        return constant(bool(always)) if always == ever else node(op, (x, y), "bool")

    def _least(self, *x: Expression | None) -> Expression | None:
        return self._extreme("min", x)

    def _most(self, *x: Expression | None) -> Expression | None:
        return self._extreme("max", x)

    def _extreme(self, op: str, x: tuple[Expression | None, ...]) -> Expression | None:
        """Of several; an operand that is never the one is left out."""
        best = x[0]
        for other in x[1:]:
            if best is None or other is None:
                return None
            (a, b), (c, d) = self.limits(best), self.limits(other)
            if best is other or (b <= c if op == "min" else a >= d):
                continue
            replaced = d <= a if op == "min" else c >= b
            best = other if replaced else self._compute(op, best, other)
        return best

    def _compute(self, op: str, *args: Expression | None) -> Expression | None:
        """An operation on bounds, in as many bits as it needs."""
        if any(arg is None for arg in args):
            return None
        operands = tuple(arg for arg in args if arg is not None)
        x, y = operands[0], operands[-1]
        if len(operands) == 2:
            if y.is_constant and y.value == {"add": 0, "sub": 0, "mul": 1, "floordiv": 1}.get(op):
                return x
            if x.is_constant and x.value == {"add": 0, "mul": 1}.get(op):
                return y
        low, high = self._interval(op, operands)
        if all(arg.is_constant for arg in operands) and low == high:
            return constant(int(low)) if INT_MIN <= low <= INT_MAX else None
        if not -_WIDEST <= low <= high <= _WIDEST:
            return None
        kind = "i32"
        if any(arg.kind == "i64" for arg in operands) or low < INT_MIN or high > INT_MAX:
            kind, wide = "i64", op in ("min", "max")
            # C++ converts the other operand, but not for a template.
            if wide or all(arg.kind == "i32" for arg in operands):
                operands = tuple(
                    self._wide(arg) if wide or i == 0 else arg for i, arg in enumerate(operands)
                )
        return self._known(node(op, operands, kind), (low, high))

    def _wide(self, x: Expression) -> Expression:
        if x.kind == "i64":
            return x
        return self._known(node("to_i64", (x,), "i64"), self.limits(x))

    def narrow(self, x: Bounds) -> Bounds:
        """Bounds of an i32 of the trace in 32 bits, for products and quotients."""

        def narrow(side: Expression | None) -> Expression | None:
            if side is None or side.kind == "i32":
                return side
            return self._known(node("saturated", (side,), "i32"), self._fit(self.limits(side)))

        return narrow(x[0]), narrow(x[1])


def _is_known(x: Bounds) -> TypeGuard[tuple[Expression, Expression]]:
    return x[0] is not None and x[1] is not None


def _pool(index: Expression) -> int:
    """Indices that an entry of a table covers: those of about POSITIONS positions."""
    if index.reads.isdisjoint(("q_idx", "kv_idx")):
        return 1
    chunk = 1
    for x in index.walk():
        if x.op in ("floordiv", "rshift") and x.args[1].is_constant:
            number = int(x.args[1].value)
            chunk = max(chunk, number if x.op == "floordiv" else 1 << number)
    return POSITIONS >> min(chunk.bit_length() - 1, POSITIONS.bit_length() - 1)


def _has_short_chunks(x: Expression, divisor: Expression) -> bool:
    """Whether hardly any KV block lies within one chunk of x."""
    if not divisor.is_constant or abs(int(divisor.value)) >= _SHORTEST_BLOCK:
        return False
    return any(argument("kv_idx") in monomial for monomial in polynomial(x))


assert set(RANGES) < set(ARGUMENTS)
