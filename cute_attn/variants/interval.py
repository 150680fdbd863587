"""Interval arithmetic over NumPy arrays of bounds, so that many tiles are classified at once.

An interval is (low, high), float64 arrays or numbers, which hold every 32-bit integer. A value that
may be NaN has the whole line, (-inf, inf): no comparison with it is decided. Truth values are
(0, 0), (1, 1) or (0, 1).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Interval = tuple[Any, Any]

WHOLE: Interval = (-np.inf, np.inf)
INT_MIN, INT_MAX = float(-(1 << 31)), float((1 << 31) - 1)


def _whole_where(wrong: Any, low: Any, high: Any) -> Interval:
    wrong = wrong | np.isnan(low) | np.isnan(high)
    return np.where(wrong, -np.inf, low), np.where(wrong, np.inf, high)


def _is_whole(x: Interval) -> Any:
    return (x[0] == -np.inf) & (x[1] == np.inf)


def fit_integer(x: Interval) -> Interval:
    """Where an i32 may overflow nothing is known of it."""
    over = (x[0] < INT_MIN) | (x[1] > INT_MAX)
    return np.where(over, INT_MIN, x[0]), np.where(over, INT_MAX, x[1])


def widen(x: Interval, relative: float, absolute: float) -> Interval:
    """Room for rounding."""
    low, high = x
    return (
        low - (relative * np.abs(np.nan_to_num(low, posinf=0, neginf=0)) + absolute),
        high + (relative * np.abs(np.nan_to_num(high, posinf=0, neginf=0)) + absolute),
    )


def neg(x: Interval) -> Interval:
    return -x[1], -x[0]


def add(x: Interval, y: Interval) -> Interval:
    return _whole_where(False, x[0] + y[0], x[1] + y[1])


def sub(x: Interval, y: Interval) -> Interval:
    return add(x, neg(y))


def mul(x: Interval, y: Interval) -> Interval:
    corners = [a * b for a in x for b in y]
    low, high = np.minimum.reduce(corners), np.maximum.reduce(corners)
    return _whole_where(False, low, high)  # 0 * inf: nothing is known


def div(x: Interval, y: Interval) -> Interval:
    has_zero = (y[0] <= 0) & (y[1] >= 0)
    low, high = np.where(has_zero, 1.0, y[0]), np.where(has_zero, 1.0, y[1])
    low, high = mul(x, (1 / high, 1 / low))
    return _whole_where(has_zero, low, high)


def floor_div(x: Interval, y: Interval) -> Interval:
    """Integers; the divisor is known not to be 0."""
    quotients = [np.floor_divide(a, b) for a in x for b in y]
    low, high = np.minimum.reduce(quotients), np.maximum.reduce(quotients)
    straddles = (y[0] < 0) & (y[1] > 0)
    most = np.maximum(np.abs(x[0]), np.abs(x[1]))
    return np.where(straddles, -most, low), np.where(straddles, most, high)


def floor_mod(x: Interval, y: Interval) -> Interval:
    """Integers; the remainder has the divisor's sign."""
    low, high = np.minimum(y[0] + 1, 0), np.maximum(y[1] - 1, 0)
    one_divisor = (y[0] == y[1]) & (y[0] != 0)
    divisor = np.where(one_divisor, y[0], 1)
    same = one_divisor & (np.floor_divide(x[0], divisor) == np.floor_divide(x[1], divisor))
    within = np.remainder(x[0], divisor), np.remainder(x[1], divisor)
    return np.where(same, within[0], low), np.where(same, within[1], high)


def shift_left(x: Interval, y: Interval) -> Interval:
    return mul(x, (np.exp2(y[0]), np.exp2(y[1])))


def shift_right(x: Interval, y: Interval) -> Interval:
    quotients = [np.floor(a / np.exp2(b)) for a in x for b in y]
    return np.minimum.reduce(quotients), np.maximum.reduce(quotients)


def absolute(x: Interval) -> Interval:
    low, high = np.abs(x[0]), np.abs(x[1])
    inside = (x[0] <= 0) & (x[1] >= 0)
    least = np.where(inside, 0.0, np.minimum(low, high))
    return _whole_where(_is_whole(x), least, np.maximum(low, high))


def minimum(x: Interval, y: Interval) -> Interval:
    return np.minimum(x[0], y[0]), np.minimum(x[1], y[1])


def maximum(x: Interval, y: Interval) -> Interval:
    return np.maximum(x[0], y[0]), np.maximum(x[1], y[1])


def where(c: Interval, x: Interval, y: Interval) -> Interval:
    low = np.where(c[0] == 1, x[0], np.where(c[1] == 0, y[0], np.minimum(x[0], y[0])))
    high = np.where(c[0] == 1, x[1], np.where(c[1] == 0, y[1], np.maximum(x[1], y[1])))
    return low, high


def truth(always: Any, sometimes: Any) -> Interval:
    return np.where(always, 1.0, 0.0), np.where(sometimes, 1.0, 0.0)


def less(x: Interval, y: Interval) -> Interval:
    return truth(x[1] < y[0], x[0] < y[1])


def less_equal(x: Interval, y: Interval) -> Interval:
    return truth(x[1] <= y[0], x[0] <= y[1])


def equal(x: Interval, y: Interval) -> Interval:
    point = (x[0] == x[1]) & (y[0] == y[1]) & (x[0] == y[0])
    return truth(point, (x[0] <= y[1]) & (y[0] <= x[1]))


def invert(x: Interval) -> Interval:
    """Logical not."""
    return 1 - x[1], 1 - x[0]


def logical_xor(x: Interval, y: Interval) -> Interval:
    known = (x[0] == x[1]) & (y[0] == y[1])
    value = (x[0] != y[0]) & known
    return np.where(value, 1.0, 0.0), np.where(known & ~value, 0.0, 1.0)


def bitwise_and(x: Interval, y: Interval) -> Interval:
    """Integers: with an operand that is not negative, between 0 and it."""
    bound = np.where(x[0] >= 0, np.where(y[0] >= 0, np.minimum(x[1], y[1]), x[1]), y[1])
    known = (x[0] >= 0) | (y[0] >= 0)
    return np.where(known, 0.0, INT_MIN), np.where(known, bound, INT_MAX)


def unknown_integer(*operands: Interval) -> Interval:
    return INT_MIN, INT_MAX


def unknown(*operands: Interval) -> Interval:
    return WHOLE


def monotone(
    function: Callable[[Any], Any], low: float = -np.inf, high: float = np.inf
) -> Callable[[Interval], Interval]:
    """The rule of a function that rises on [low, high] and gives NaN elsewhere."""

    def rule(x: Interval) -> Interval:
        outside = (x[0] < low) | (x[1] > high) | _is_whole(x)
        a, b = np.clip(x[0], low, high), np.clip(x[1], low, high)
        with np.errstate(all="ignore"):
            return _whole_where(outside, function(a), function(b))

    return rule


def rsqrt(x: Interval) -> Interval:
    outside = x[0] <= 0
    a, b = np.where(outside, 1.0, x[0]), np.where(outside, 1.0, x[1])
    return _whole_where(outside, 1 / np.sqrt(b), 1 / np.sqrt(a))


def wave(x: Interval) -> Interval:
    """Sine and cosine."""
    finite = np.isfinite(x[0]) & np.isfinite(x[1])
    return _whole_where(~finite, -1.0 + 0 * np.where(finite, x[0], 0), 1.0 + 0 * x[1])
