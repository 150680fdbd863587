"""What a traced mask says about where keys are visible: its band, and whole rectangles of scores.

The band comes from the comparisons in the mask: each is a polynomial that must not be negative, and
where that has a linear bound in kv_idx - q_idx, it limits the band. Conjunctions tighten it,
disjunctions loosen it, and what is not understood limits nothing. Rectangles are classified by
interval arithmetic. Both are safe: a key that the mask lets through is never outside the band or in
an empty rectangle. i32 is taken not to overflow, as in C++.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from cute_attn.abi import UNBOUNDED
from cute_attn.variants import interval
from cute_attn.variants.band import Band, Limit, as_limit, looser
from cute_attn.variants.build import operate
from cute_attn.variants.domain import EVERYWHERE, bounds
from cute_attn.variants.expression import ARGUMENTS, Expression, argument, constant
from cute_attn.variants.interval import Interval
from cute_attn.variants.polynomial import Polynomial, expression, plus, polynomial, upper_bounds

_Q, _KV = argument("q_idx"), argument("kv_idx")
_NEGATED = {"lt": "ge", "le": "gt", "gt": "le", "ge": "lt", "eq": "ne", "ne": "eq"}


@dataclass(frozen=True)
class MaskBand:
    """What is known of a mask.

    Attributes:
        band: outside it the mask lets nothing through.
        exact: inside it the mask lets everything through.
    """

    band: Band
    exact: bool


def band_of(mask: Expression) -> MaskBand:
    """The band of a mask, within the present limits of its scalars (`scalars_between`)."""
    return _band(mask, wanted=True)


def _band(mask: Expression, *, wanted: bool) -> MaskBand:
    """Of `mask`, or of its negation."""
    if mask.is_constant:
        # Nothing visible: a band has at least the query's own position.
        return MaskBand(Band() if mask.value is wanted else Band(0, 0), mask.value is wanted)
    if mask.op == "not":
        return _band(mask.args[0], wanted=not wanted)
    if mask.op in ("and", "or"):
        parts = [_band(x, wanted=wanted) for x in mask.args]
        return _all(*parts) if (mask.op == "and") is wanted else _any(*parts)
    if mask.op == "where":
        condition, x, y = mask.args
        met, unmet = _band(condition, wanted=True), _band(condition, wanted=False)
        return _any(_all(met, _band(x, wanted=wanted)), _all(unmet, _band(y, wanted=wanted)))
    op = mask.op if wanted else _NEGATED.get(mask.op)
    if op in _NEGATED and mask.args[0].kind == "i32":
        return _comparison(op, *mask.args)
    return MaskBand(Band(), False)


def _all(x: MaskBand, y: MaskBand) -> MaskBand:
    return MaskBand(x.band & y.band, x.exact and y.exact)


def _any(x: MaskBand, y: MaskBand) -> MaskBand:
    left, right = looser(x.band.left, y.band.left), looser(x.band.right, y.band.right)
    return MaskBand(Band(left, right), False)


def _comparison(op: str, x: Expression, y: Expression) -> MaskBand:
    """Each comparison as polynomials that are not negative."""
    a, b = (polynomial(side, expand_remainders=True) for side in (x, y))
    at_least, at_most = plus(a, b, -1), plus(b, a, -1)
    minus_one: Polynomial = {(): -1}
    wanted = {
        "ge": [at_least],
        "gt": [plus(at_least, minus_one)],
        "le": [at_most],
        "lt": [plus(at_most, minus_one)],
        "eq": [at_least, at_most],
        "ne": [],
    }[op]
    if not wanted:
        return MaskBand(Band(), False)
    return reduce(_all, (_not_negative(p) for p in wanted))


def _not_negative(x: Polynomial) -> MaskBand:
    """Where the polynomial is not negative."""
    found = [MaskBand(_limits(bound), False) for bound, _ in upper_bounds(x)]
    if all(node.is_leaf for monomial in x for node in monomial):
        (band,) = [known.band for known in found]
        return MaskBand(band, _is_exact(x, band))
    return reduce(_all, found, MaskBand(Band(), False))


def _limits(bound: Polynomial) -> Band:
    """The band where a polynomial of arguments and scalars is not negative."""
    slope_q, slope_kv = bound.get((_Q,), 0), bound.get((_KV,), 0)
    rest = {m: c for m, c in bound.items() if m not in ((_Q,), (_KV,))}
    if slope_kv == 0 or slope_q != -slope_kv or any(_Q in m or _KV in m for m in rest):
        return Band()
    most = _over_heads(rest)
    if most is None or any(abs(c) >= UNBOUNDED for c in most.values()):
        return Band()
    limit = expression(most)
    if abs(slope_kv) > 1:
        limit = operate("floordiv", limit, constant(abs(slope_kv)))
    if bounds(limit)[0] < 0:
        limit = operate("max", limit, constant(0))
    value: Limit = as_limit(limit)
    return Band(left=value) if slope_kv > 0 else Band(right=value)


def _over_heads(x: Polynomial) -> Polynomial | None:
    """At least x for every request and head; None if there is no such bound."""
    total: Polynomial = {}
    for monomial, coefficient in x.items():
        if not any(str(node.value) in ARGUMENTS for node in monomial):
            total = plus(total, {monomial: coefficient})
        elif len(monomial) > 1 or coefficient > 0:
            return None  # b and h have no upper bound, and are never negative
    return total


def _is_exact(x: Polynomial, band: Band) -> bool:
    """Whether x >= 0 exactly inside the band that was made of it."""
    if band == Band():
        return False
    rest = {m: c for m, c in x.items() if m not in ((_Q,), (_KV,))}
    if any(str(node.value) in ARGUMENTS for monomial in rest for node in monomial):
        return False
    return bool(bounds(expression(rest))[0] >= 0)


EMPTY, PARTIAL, FULL = 0, 1, 2


def classify(mask: Expression, leaves: Mapping[str, Interval]) -> Any:
    """Whether a mask lets all, nothing or something of rectangles of scores through.

    Args:
        mask: a traced mask.
        leaves: (first, last) of q_idx and kv_idx, inclusive, arrays that broadcast; the same of b,
            h and scalars where they are known.

    Returns:
        int8 array of their common shape: EMPTY, PARTIAL or FULL; PARTIAL if it is not known.
    """
    with np.errstate(all="ignore"):
        low, high = _truth(mask, {**EVERYWHERE, **leaves})
    kind = np.where(low == 1, FULL, np.where(high == 0, EMPTY, PARTIAL)).astype(np.int8)
    shape = np.broadcast_shapes(*(np.shape(x) for limits in leaves.values() for x in limits))
    return np.broadcast_to(kind, shape)


_LOGIC: dict[str, Callable[..., Interval]] = {
    "and": interval.minimum,
    "or": interval.maximum,
    "not": interval.invert,
    "xor": interval.logical_xor,
    "where": interval.where,
}
_SIGNS: dict[str, Callable[[Any, Any], Interval]] = {
    # Of (low, high) of the difference.
    "lt": lambda low, high: interval.truth(high < 0, low < 0),
    "le": lambda low, high: interval.truth(high <= 0, low <= 0),
    "gt": lambda low, high: interval.truth(low > 0, high > 0),
    "ge": lambda low, high: interval.truth(low >= 0, high >= 0),
    "eq": lambda low, high: interval.truth((low == 0) & (high == 0), (low <= 0) & (high >= 0)),
    "ne": lambda low, high: interval.truth((low > 0) | (high < 0), (low != 0) | (high != 0)),
}


def _truth(mask: Expression, leaves: Mapping[str, Interval]) -> Interval:
    """Bounds of a mask: like `bounds`, but comparisons see what cancels between their sides."""
    if mask.op in _LOGIC and all(x.kind == "bool" for x in mask.args):
        return _LOGIC[mask.op](*(_truth(x, leaves) for x in mask.args))
    plain = bounds(mask, leaves)
    if mask.op in _SIGNS and mask.args[0].kind == "i32":
        for expand in (False, True):  # x % c cancels against x, or is better bounded by itself
            sides = [polynomial(x, expand_remainders=expand) for x in mask.args]
            low, high = _SIGNS[mask.op](*_sum(plus(sides[0], sides[1], -1), leaves))
            plain = np.maximum(low, plain[0]), np.minimum(high, plain[1])
    return plain


def _sum(x: Polynomial, leaves: Mapping[str, Interval]) -> Interval:
    total: Interval = (0.0, 0.0)
    for monomial, coefficient in x.items():
        factors = [bounds(node, leaves) for node in monomial]
        product = reduce(interval.mul, factors, (1.0, 1.0))
        total = interval.add(total, interval.mul((float(coefficient),) * 2, product))
    return total
