"""Builds expressions: converts operands, checks kinds, folds constants.

Folding is of constants and of what cannot change a bit (x + 0, x * 1, true & x): the traced program
stays the one that was written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from cute_attn.variants.expression import (
    VECTOR_OPERATIONS,
    Constant,
    Expression,
    constant,
    load,
    node,
)
from cute_attn.variants.operations import OPERATIONS

_NAMES = {"bool": "a truth value", "i32": "an integer", "f32": "a float"}


def convert(x: Expression, kind: str) -> Expression:
    """`x` as `kind`; to bool: whether it is not 0."""
    if x.kind == kind:
        return x
    if x.is_constant:
        types = {"bool": bool, "i32": int, "f32": float}
        return constant(types[kind](x.value))
    if kind == "bool":
        return operate("ne", x, constant(0))
    return node(f"to_{kind}", (x,), kind)


def operate(name: str, *args: Expression) -> Expression:
    """`name` of operands.

    Raises:
        TypeError: wrong number or kinds of operands.
        ValueError, OverflowError: constants for which there is no result.
    """
    row = OPERATIONS[name]
    if len(args) != row.arity:
        raise TypeError(f"{name} takes {row.arity} operands, got {len(args)}")
    if row.rule == "logic" and all(x.kind == "i32" for x in args):
        return operate(f"bit_{name}", *args)
    args, kind = _typed(name, row.rule, args)
    folded = _simplified(name, args)
    if folded is not None:
        return folded
    if all(x.is_constant for x in args):
        return _folded(name, args, kind)
    return node(name, args, kind)


def _typed(
    name: str, rule: str, args: tuple[Expression, ...]
) -> tuple[tuple[Expression, ...], str]:
    """Operands converted as the rule says, and the kind of the result."""
    kinds = {x.kind for x in args}
    widest = "f32" if "f32" in kinds else "i32"
    if rule == "number":
        return tuple(convert(x, widest) for x in args), widest
    if rule == "float":
        return tuple(convert(x, "f32") for x in args), "f32"
    if rule == "compare":
        return tuple(convert(x, widest) for x in args), "bool"
    if rule == "integer":
        if "f32" in kinds:
            raise TypeError(f"{name} takes integers, not floats")
        return tuple(convert(x, "i32") for x in args), "i32"
    if rule == "logic":
        if kinds != {"bool"}:
            what = " and ".join(_NAMES[x.kind] for x in args)
            raise TypeError(f"{name} takes truth values, or integers; got {what}")
        return args, "bool"
    if rule == "choice":
        chosen = "bool" if {x.kind for x in args[1:]} == {"bool"} else widest
        condition = convert(args[0], "bool")
        return (condition, *(convert(x, chosen) for x in args[1:])), chosen
    return args, {"to_i32": "i32", "to_f32": "f32"}[rule]


def _is(x: Expression, value: Constant) -> bool:
    return x.is_constant and x.value == value


def _simplified(name: str, args: tuple[Expression, ...]) -> Expression | None:
    """The result, if it is an operand or a constant."""
    x, y = args[0], args[-1]
    if name in ("add", "sub") and _is(y, 0):
        return x
    if name == "add" and _is(x, 0):
        return y
    if name in ("mul", "div", "floordiv") and _is(y, 1):
        return x
    if name == "mul" and _is(x, 1):
        return y
    if name == "and":
        return _logic(x, y, absorbing=False)
    if name == "or":
        return _logic(x, y, absorbing=True)
    if name == "not" and x.op == "not":
        return x.args[0]
    if name == "where":
        if args[0].is_constant:
            return args[1] if args[0].value else args[2]
        return args[1] if args[1] is args[2] else None
    if name in ("min", "max") and x is y:
        return x
    return None


def _logic(x: Expression, y: Expression, *, absorbing: bool) -> Expression | None:
    for one, other in ((x, y), (y, x)):
        if one.is_constant:
            return one if one.value is absorbing else other
    return x if x is y else None


def _folded(name: str, args: tuple[Expression, ...], kind: str) -> Expression:
    """Of constants, in Python's precision: rounded once, to float32, where it is used."""
    values = [x.value for x in args]
    if name in ("floordiv", "mod") and values[1] == 0:
        raise ValueError("integer division by 0")
    if name in ("lshift", "rshift") and not 0 <= values[1] < 32:
        raise ValueError(f"shift by {values[1]}")
    wide = [np.float64(v) if isinstance(v, float) else v for v in values]
    with np.errstate(all="ignore"):
        result = OPERATIONS[name].numpy(*wide)
    value = {"bool": bool, "i32": int, "f32": float}[kind](result)
    if isinstance(value, float) and math.isnan(value):
        raise ValueError(f"{name} of {', '.join(map(str, values))} is no number")
    return constant(value)


def member(x: Expression, number: int, pairing: Any) -> Expression:
    """The first (0) or second (1) element of the pairs (`vectors.Pairing`) of a row."""
    if x.op == "join" and x.value == pairing:
        return x.args[number]
    return node(("first", "second")[number], (x,), x.kind, pairing)


def rebuild(old: Expression, args: tuple[Expression, ...]) -> Expression:
    """The operation of a node on other operands."""
    if old.op == "load":
        return load(old.value, old.kind, args)
    if old.op in ("to_i32", "to_f32"):
        return convert(args[0], old.kind)
    if old.op in ("first", "second"):
        return member(args[0], int(old.op == "second"), old.value)
    if old.op in VECTOR_OPERATIONS:
        return node(old.op, args, old.kind, old.value)
    return operate(old.op, *args)


def substitute(
    root: Expression,
    values: Mapping[str, Constant],
    arguments: Mapping[str, Expression] | None = None,
) -> dict[Expression, Expression]:
    """What every node of an expression becomes when scalars get values.

    Args:
        root: the expression.
        values: of scalars, by name.
        arguments: expressions in the place of arguments, by name.
    """
    new: dict[Expression, Expression] = {}
    for old in root.walk():
        if old.op == "scalar" and old.value in values:
            new[old] = convert(constant(values[old.value]), old.kind)
        elif old.op == "argument" and arguments and old.value in arguments:
            new[old] = arguments[str(old.value)]
        elif old.is_leaf:
            new[old] = old
        else:
            new[old] = rebuild(old, tuple(new[x] for x in old.args))
    return new
