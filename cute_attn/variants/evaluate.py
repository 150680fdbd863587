"""Evaluates expressions with NumPy, vectorised: what the CPU executor runs.

In a vector hook, the last axis is that of the elements, or of the pairs; it is 1 for values of the
row as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cute_attn.variants.expression import VECTOR_OPERATIONS, Expression
from cute_attn.variants.operations import OPERATIONS
from cute_attn.variants.vectors import Pairing, across


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


def evaluate_vector(root: Expression, values: Mapping[str, Any], dtype: Any = np.float32) -> Any:
    """The value of a vector hook.

    Args:
        root: the expression.
        values: x (..., head_dim); b, h and pos, which broadcast with x[..., 0]; parameters.
        dtype: float32 or float64: what "f32" is computed in.

    Returns:
        (..., head_dim) of `dtype`.

    Raises:
        ValueError: more elements are in pairs than there are.
    """
    x = np.asarray(values["x"])
    head_dim = x.shape[-1]
    pairing = across(root).pairing
    given = {name: np.asarray(values[name])[..., None] for name in ("b", "h", "pos")}
    given |= {"x": x, "head_dim": head_dim, "index": np.arange(head_dim)}
    if pairing is not None:
        given["pair"] = np.arange(pairing.within(head_dim) // 2)
    result = np.asarray(evaluate(root, {**values, **given}, dtype), dtype)
    return np.broadcast_to(result, np.broadcast_shapes(result.shape, x.shape))


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
    if node.op in ("cosine", "sine"):
        # The angle in float64, as kernels have it exactly.
        angle = np.asarray(args[0]) * evaluate(node.args[1], values, np.float64)
        return np.asarray(getattr(np, node.op[:3])(angle), dtype)
    if node.op in VECTOR_OPERATIONS:
        return _across(node.op, node.value, args, int(values["head_dim"]))
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


def _across(op: str, pairing: Pairing, args: list[Any], head_dim: int) -> Any:
    """An operation across elements."""
    row = np.asarray(args[-1])
    row = np.broadcast_to(row, (*row.shape[:-1], head_dim))
    if op == "sum":
        return row.sum(axis=-1, keepdims=True)
    count = pairing.within(head_dim)
    places = slice(0, count // 2), slice(count // 2, count)
    if not pairing.halves:
        places = slice(0, count, 2), slice(1, count, 2)
    if op != "join":
        return row[..., places[op == "second"]]
    shape = np.broadcast_shapes(*(np.shape(x)[:-1] for x in args))
    out = np.array(np.broadcast_to(row, (*shape, head_dim)))
    for place, value in zip(places, args, strict=False):
        out[..., place] = value
    return out


def _element(array: Any, indices: list[Any], kind: str, dtype: Any) -> Any:
    """Elements of a tensor; an index outside it takes the last one of its dimension."""
    inside = [
        np.where((np.asarray(i) < 0) | (np.asarray(i) >= size), size - 1, i)
        for i, size in zip(indices, array.shape, strict=True)
    ]
    elements = array[tuple(inside)]
    return elements.astype({"f32": dtype, "i32": np.int64, "bool": np.bool_}[kind])
