"""What values the leaves of an expression can have, and bounds of an expression over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from cute_attn.variants import interval
from cute_attn.variants.expression import ARGUMENTS, VECTOR_OPERATIONS, Expression
from cute_attn.variants.interval import INT_MAX, INT_MIN, WHOLE, Interval
from cute_attn.variants.operations import OPERATIONS

_POSITION = float(1 << 30)
"""Positions are below it. A query that has more rows than keys starts at negative positions."""

EVERYWHERE: Mapping[str, Interval] = {
    "score": WHOLE,
    "b": (0.0, _POSITION),
    "h": (0.0, _POSITION),
    "q_idx": (-_POSITION, _POSITION),
    "kv_idx": (0.0, _POSITION),
    "x": WHOLE,
    "pos": (-_POSITION, _POSITION),
    "index": (0.0, _POSITION),
    "pair": (0.0, _POSITION),
    "head_dim": (1.0, _POSITION),
    "lse": WHOLE,
    "out": WHOLE,
    "d": (0.0, _POSITION),
}
"""Every value of the arguments."""

_scalars: ContextVar[Mapping[str, Interval]] = ContextVar("scalars", default={})  # noqa: B039 - never changed


@contextmanager
def scalars_between(limits: Mapping[str, Interval]) -> Iterator[None]:
    """Within it, scalars of these names are known to be between these limits."""
    token = _scalars.set(limits)
    try:
        yield
    finally:
        _scalars.reset(token)


def bounds(root: Expression, leaves: Mapping[str, Interval] | None = None) -> Interval:
    """Bounds of an expression.

    Args:
        root: the expression.
        leaves: bounds of arguments and scalars; those not given take all their values.
    """
    known = {**EVERYWHERE, **_scalars.get(), **(leaves or {})}
    found: dict[Expression, Interval] = {}
    with np.errstate(all="ignore"):
        for node in root.walk():
            found[node] = _bounds_of(node, known, found)
    return found[root]


def _bounds_of(
    node: Expression, known: Mapping[str, Interval], found: Mapping[Expression, Interval]
) -> Interval:
    if node.is_constant:
        return float(node.value), float(node.value)
    if node.is_leaf:
        return known.get(str(node.value), (INT_MIN, INT_MAX) if node.kind == "i32" else WHOLE)
    if node.op == "load":
        return {"f32": WHOLE, "i32": (INT_MIN, INT_MAX), "bool": (0.0, 1.0)}[node.kind]
    if node.op in VECTOR_OPERATIONS:
        return _bounds_across(node, found)
    operation = OPERATIONS[node.op]
    result = operation.interval(*(found[x] for x in node.args))
    if node.kind == "i32":
        return interval.fit_integer(result)
    if node.kind == "f32" and operation.error != (0.0, 0.0):
        return interval.widen(result, *operation.error)
    return result


def _bounds_across(node: Expression, found: Mapping[Expression, Interval]) -> Interval:
    if node.op in ("cosine", "sine"):
        return -1.00001, 1.00001  # rounded
    if node.op == "sum":
        return WHOLE
    lows, highs = zip(*(found[x] for x in node.args), strict=True)
    return np.minimum.reduce(lows), np.maximum.reduce(highs)


assert set(EVERYWHERE) > set(ARGUMENTS)
