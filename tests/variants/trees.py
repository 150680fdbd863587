"""Random programs: trees that run on Python's numbers and on traced values alike."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import strategies as st

from cute_attn.variants import EMPTY, FULL, functions

Tree = Any
"""A number, an argument's name, or (operation, *operands)."""

INTEGERS = ("b", "h", "q_idx", "kv_idx")
SCALARS = {"size": 5, "shift": -3, "slope": 0.75}


def _size(x: Any) -> Any:
    """Keeps integers well within 32 bits."""
    return x % 100003


_OPERATORS: dict[str, Callable[..., Any]] = {
    name: getattr(operator, name)
    for name in (
        "add", "sub", "mul", "floordiv", "mod", "neg", "abs", "lt", "le", "gt", "ge", "eq", "ne",
        "and_", "or_", "xor",
    )
}  # fmt: skip
TRACED: dict[str, Callable[..., Any]] = {
    **_OPERATORS,
    "not_": lambda x: ~functions.where(x, True, False),
    "where": functions.where,
    "minimum": functions.minimum,
    "maximum": functions.maximum,
    "tamed": _size,
    "ratio": lambda x, y: x / (1.0 + abs(y)),
    "tanh": functions.tanh,
    "sigmoid": functions.sigmoid,
    "tanh_approx": functions.tanh_approx,
    "sigmoid_approx": functions.sigmoid_approx,
    "sigmoid2_approx": functions.sigmoid2_approx,
    "sin": functions.sin,
    "cos": functions.cos,
    "exp": lambda x: functions.exp(-abs(x)),
    "exp2": lambda x: functions.exp2(-abs(x)),
    "log": lambda x: functions.log(1.0 + abs(x)),
    "log2": lambda x: functions.log2(1.0 + abs(x)),
    "erf": functions.erf,
    "sqrt": lambda x: functions.sqrt(1.0 + abs(x)),
    "rsqrt": lambda x: functions.rsqrt(1.0 + abs(x)),
    "square": lambda x: x**2,
    "root": lambda x: (1.0 + abs(x)) ** 0.5,
    "pow": lambda x: (1.0 + abs(x)) ** 0.3,
}
PYTHON: dict[str, Callable[..., Any]] = {
    **_OPERATORS,
    "not_": operator.not_,
    "where": lambda c, x, y: x if c else y,
    "minimum": min,
    "maximum": max,
    "tamed": _size,
    "ratio": TRACED["ratio"],
    "tanh": math.tanh,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "tanh_approx": math.tanh,
    "sigmoid_approx": lambda x: 1 / (1 + math.exp(-x)) if x > -700 else 0.0,
    "sigmoid2_approx": lambda x: 1 / (1 + math.exp2(-x)) if x > -1000 else 0.0,
    "sin": math.sin,
    "cos": math.cos,
    "exp": lambda x: math.exp(-abs(x)),
    "exp2": lambda x: 2 ** -abs(x),
    "log": lambda x: math.log(1 + abs(x)),
    "log2": lambda x: math.log2(1 + abs(x)),
    "erf": math.erf,
    "sqrt": lambda x: math.sqrt(1 + abs(x)),
    "rsqrt": lambda x: 1 / math.sqrt(1 + abs(x)),
    "square": TRACED["square"],
    "root": TRACED["root"],
    "pow": TRACED["pow"],
}


def run(tree: Tree, values: Mapping[str, Any], table: Mapping[str, Callable[..., Any]]) -> Any:
    """What a tree computes."""
    if isinstance(tree, str):
        return values[tree]
    if not isinstance(tree, tuple):
        return tree
    return table[tree[0]](*(run(x, values, table) for x in tree[1:]))


def _of(names: tuple[str, ...], *operands: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
    return st.tuples(st.sampled_from(names), *operands)


_integer_leaves = st.sampled_from((*INTEGERS, "size", "shift")) | st.integers(-9, 9)
_divisors = st.just("size") | st.integers(1, 9) | st.integers(-9, -1)


def integers(depth: int = 3) -> st.SearchStrategy[Tree]:
    """Trees of integers."""
    if depth == 0:
        return _integer_leaves
    less = integers(depth - 1)
    return st.one_of(
        *([_integer_leaves] if depth < 3 else []),
        _of(("add", "sub", "minimum", "maximum", "and_", "or_", "xor"), less, less),
        _of(("mul",), st.tuples(st.just("tamed"), less), st.integers(-9, 9)),
        _of(("floordiv", "mod"), less, _divisors),
        _of(("neg", "abs"), less),
        _of(("where",), truths(depth - 1), less, less),
    )


def truths(depth: int = 3) -> st.SearchStrategy[Tree]:
    """Trees of truth values over integers."""
    operands = integers(max(depth - 1, 0))
    comparisons = _of(("lt", "le", "gt", "ge", "eq", "ne"), operands, operands)
    if depth == 0:
        return comparisons
    less = truths(depth - 1)
    return st.one_of(
        comparisons,
        _of(("and_", "or_", "xor"), less, less),
        _of(("not_",), less),
        _of(("where",), less, less, less),
    )


def floats(depth: int = 4) -> st.SearchStrategy[Tree]:
    """Trees of floats without jumps, but for those at integers."""
    leaves = st.sampled_from(("score", "slope")) | st.floats(-4, 4, width=16)
    if depth == 0:
        return leaves
    less = floats(depth - 1)
    smooth = ("tanh", "sigmoid", "exp", "exp2", "log", "log2", "erf", "sqrt", "rsqrt", "root",
              "pow", "neg", "abs", "tanh_approx", "sigmoid_approx", "sigmoid2_approx")  # fmt: skip
    # The sine of 10^7 magnifies what its argument was rounded by.
    angles = _of(("mul",), st.tuples(st.just("tanh"), less), st.integers(-99, 99))
    return st.one_of(
        *([leaves] if depth < 3 else []),
        _of(("add", "sub", "ratio", "minimum", "maximum"), less, less),
        _of(("mul",), st.tuples(st.just("tanh"), less), less),
        _of(("mul", "add"), less, integers(1)),
        _of(smooth, less),
        _of(("sin", "cos"), angles),
        _of(("square",), st.tuples(st.just("sin"), angles)),
        _of(("where",), truths(1), less, less),
    )


RECTANGLES = st.tuples(
    st.integers(-40, 40), st.integers(0, 12), st.integers(0, 40), st.integers(0, 12)
)
"""Of scores: first query, further queries, first key, further keys."""


def promise(kind: Any, visible: Any) -> None:
    """What a class says of a rectangle is true of its scores."""
    if kind == FULL:
        assert np.all(visible)
    if kind == EMPTY:
        assert not np.any(visible)
