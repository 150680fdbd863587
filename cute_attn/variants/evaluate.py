"""Evaluates expressions with NumPy, vectorised: what the CPU executor runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cute_attn.variants.expression import Expression
from cute_attn.variants.operations import OPERATIONS


def evaluate(root: Expression, values: Mapping[str, Any], dtype: Any = np.float32) -> Any:
    """The value of an expression.

    Args:
        root: the expression.
        values: of the arguments and scalars it reads, by name; arrays that broadcast. Of tables of
            ranges the functions (`RangeTable.over`).
        dtype: float32 or float64: what "f32" is computed in.

    Returns:
        an array or NumPy scalar; a bool or int if `root` is such a constant.
    """
    dtype = np.dtype(dtype)
    found: dict[Expression, Any] = {}
    with np.errstate(all="ignore"):
        for node in root.walk():
            found[node] = _value(node, values, dtype, found)
    return found[root]


def _value(
    node: Expression, values: Mapping[str, Any], dtype: Any, found: Mapping[Expression, Any]
) -> Any:
    if node.is_leaf:
        value = node.value if node.is_constant else values[str(node.value)]
        if node.kind == "f32":
            return np.asarray(value, dtype)[()]
        return int(value) if node.op == "scalar" else value
    args = [found[x] for x in node.args]
    if node.op == "load":
        return _element(np.asarray(values[str(node.value)]), args, node.kind, dtype)
    if node.op == "range":
        return values[str(node.value)](*args)
    if node.op in ("least", "most"):
        return args[0][node.op == "most"]
    if node.op == "to_i64":
        return args[0]
    if node.op == "saturated":
        return np.clip(args[0], -(1 << 31), (1 << 31) - 1)
    if node.op == "to_f32":
        return np.asarray(args[0]).astype(dtype)[()]
    if node.op == "to_i32":
        return np.trunc(args[0]).astype(np.int64)
    if node.args[0].kind == "f32" and node.kind == "f32":
        return np.asarray(OPERATIONS[node.op].numpy(*args), dtype)[()]
    return OPERATIONS[node.op].numpy(*args)


def _element(array: Any, indices: list[Any], kind: str, dtype: Any) -> Any:
    """Elements of a tensor; an index outside it takes the last one of its dimension."""
    inside = [
        np.where((np.asarray(i) < 0) | (np.asarray(i) >= size), size - 1, i)
        for i, size in zip(indices, array.shape, strict=True)
    ]
    elements = array[tuple(inside)]
    return elements.astype({"f32": dtype, "i32": np.int64, "bool": np.bool_}[kind])
