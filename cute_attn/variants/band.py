"""`Band`: how far from its own position a query sees, for every head and request."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cute_attn.abi import UNBOUNDED
from cute_attn.variants.build import operate, substitute
from cute_attn.variants.domain import bounds
from cute_attn.variants.evaluate import evaluate
from cute_attn.variants.expression import Expression, constant, scalar

Limit = int | str | Expression
"""A number of keys: a constant, the name of an i32 scalar, or an expression of such scalars."""


@dataclass(frozen=True)
class Band:
    """Keys outside q_idx - left <= kv_idx <= q_idx + right are invisible to every head and request.

    The scheduler and the kernels skip KV blocks outside the band. None: no limit.
    """

    left: Limit | None = None
    right: Limit | None = None

    def resolve(self, scalars: Mapping[str, float | int]) -> tuple[int, int]:
        """(left, right) as integers; UNBOUNDED where there is no limit.

        Raises:
            ValueError: a limit is negative.
        """

        def limit(value: Limit | None) -> int:
            if value is None:
                return UNBOUNDED
            if isinstance(value, Expression):
                names = tuple(sorted(value.reads))
                number = _evaluate(value, names, tuple(scalars[name] for name in names))
            else:
                number = int(scalars[value]) if isinstance(value, str) else value
            if number < 0:
                name = "a band limit" if isinstance(value, int) else f"{value}"
                raise ValueError(f"{name} is {number}; it takes 0 or more keys")
            return min(number, UNBOUNDED)

        return limit(self.left), limit(self.right)

    def scalars(self) -> frozenset[str]:
        """Names of the scalars that it depends on."""
        limits = (x for x in (self.left, self.right) if x is not None)
        return frozenset().union(*(as_expression(x).reads for x in limits))

    def bake(self, scalars: Mapping[str, float | int]) -> Band:
        """With constants in the place of scalars."""

        def limit(value: Limit | None) -> Limit | None:
            if value is None:
                return None
            old = as_expression(value)
            return as_limit(substitute(old, scalars)[old])

        return Band(limit(self.left), limit(self.right))

    def __and__(self, other: Band) -> Band:
        """The keys of both."""
        return Band(tighter(self.left, other.left), tighter(self.right, other.right))


@lru_cache(maxsize=256)
def _evaluate(limit: Expression, names: tuple[str, ...], values: tuple[float | int, ...]) -> int:
    return int(evaluate(limit, dict(zip(names, values, strict=True))))


def as_expression(limit: Limit) -> Expression:
    """A limit as an i32 expression."""
    if isinstance(limit, Expression):
        return limit
    return scalar(limit, "i32") if isinstance(limit, str) else constant(limit)


def as_limit(x: Expression) -> Limit:
    """The plainest form of a limit."""
    if x.is_constant:
        return int(x.value)
    return str(x.value) if x.op == "scalar" else x


def tighter(a: Limit | None, b: Limit | None) -> Limit | None:
    """The smaller of two limits."""
    if a is None or b is None:
        return a if b is None else b
    x, y = as_expression(a), as_expression(b)
    if _at_most(x, y) or _at_most(y, x):
        return as_limit(x if _at_most(x, y) else y)
    return as_limit(operate("min", x, y))


def looser(a: Limit | None, b: Limit | None) -> Limit | None:
    """The larger of two limits."""
    if a is None or b is None:
        return None
    x, y = as_expression(a), as_expression(b)
    if _at_most(x, y) or _at_most(y, x):
        return as_limit(y if _at_most(x, y) else x)
    return as_limit(operate("max", x, y))


def _at_most(x: Expression, y: Expression) -> bool:
    """Whether x <= y whatever the scalars are."""
    return bool(bounds(x)[1] <= bounds(y)[0])
