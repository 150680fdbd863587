"""torch's and NumPy's functions and methods by name, over traced values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cute_attn.variants.activations import ACTIVATIONS
from cute_attn.variants.operations import OPERATIONS
from cute_attn.variants.traced import (
    Traced,
    apply,
    floor_divide,
    kind_of,
    lift,
    power,
    remainder,
    shift,
)

_SAME = (
    "neg", "add", "sub", "mul", "div", "abs", "min", "max", "lt", "le", "gt", "ge", "eq", "ne",
    "where", "exp", "exp2", "log", "log2", "tanh", "sigmoid", "sqrt", "rsqrt", "sin", "cos", "erf",
    "floor", "ceil", "trunc", "round",
)  # fmt: skip

_OTHER_NAMES = {
    "absolute": "abs", "negative": "neg", "subtract": "sub", "multiply": "mul", "divide": "div",
    "true_divide": "div", "truediv": "div", "maximum": "max", "fmax": "max", "minimum": "min",
    "fmin": "min", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
    "equal": "eq", "not_equal": "ne", "bitwise_and": "and", "bitwise_or": "or",
    "bitwise_xor": "xor", "and": "and", "or": "or", "xor": "xor", "rint": "round", "fix": "trunc",
    "special_expit": "sigmoid", "special_exp2": "exp2", "special_erf": "erf",
}  # fmt: skip


def _unary_or_binary(name: str) -> Callable[..., Traced]:
    def call(*args: Any) -> Traced:
        return apply(name, *args)

    return call


def _truth(x: Any) -> Traced:
    return Traced(lift(x)).to(bool)


def clamp(x: Any, min: Any = None, max: Any = None) -> Traced:
    """`x` between `min` and `max`."""
    if min is not None:
        x = apply("max", x, min)
    return Traced(lift(x)) if max is None else apply("min", x, max)


def _like(value: float) -> Callable[..., Traced]:
    """`ones_like` and its kin: a constant of the kind of the tensor, or of `dtype`."""

    def call(x: Any, size: Any = (), *, dtype: Any = None, device: Any = None) -> Traced:
        return Traced(lift(value)).to(lift(x).kind if dtype is None else dtype)

    return call


_COMPOSED: dict[str, Callable[..., Any]] = {
    **ACTIVATIONS,
    "floor_divide": floor_divide,
    "floordiv": floor_divide,
    "remainder": remainder,
    "mod": remainder,
    "pow": power,
    "power": power,
    "float_power": power,
    "lshift": lambda x, y: shift("lshift", x, y),
    "rshift": lambda x, y: shift("rshift", x, y),
    "invert": lambda x: ~Traced(lift(x)),
    "clamp": clamp,
    "clip": clamp,
    "clamp_min": lambda x, min: apply("max", x, min),
    "clamp_max": lambda x, max: apply("min", x, max),
    "square": lambda x: power(x, 2),
    "reciprocal": lambda x: apply("div", 1.0, x),
    "log1p": lambda x: apply("log", 1 + x),
    "expm1": lambda x: apply("exp", x) - 1,
    "log10": lambda x: apply("log2", x) * 0.3010299956639812,
    "sign": lambda x: (x > 0).to(lift(x).kind) - (x < 0).to(lift(x).kind),
    "positive": lambda x: x,
    "logical_and": lambda x, y: _truth(x) & _truth(y),
    "logical_or": lambda x, y: _truth(x) | _truth(y),
    "logical_xor": lambda x, y: _truth(x) ^ _truth(y),
    "logical_not": lambda x: ~_truth(x),
    "ones_like": _like(1),
    "zeros_like": _like(0),
    "new_ones": _like(1),
    "new_zeros": _like(0),
    "float": lambda x: x.to(float),
    "int": lambda x: x.to(int),
    "long": lambda x: x.to(int),
    "bool": lambda x: x.to(bool),
    "type": lambda x, dtype: x.to(dtype),
    "astype": lambda x, dtype: x.to(dtype),
}
for _alias, _target in (
    ("bitwise_not", "invert"),
    ("bitwise_left_shift", "lshift"),
    ("left_shift", "lshift"),
    ("bitwise_right_shift", "rshift"),
    ("right_shift", "rshift"),
):
    _COMPOSED[_alias] = _COMPOSED[_target]

# In-place and class methods have no place among scalars; these are functions only.
_NO_METHODS = {*ACTIVATIONS, "and", "or"} - {"relu"}


def find(name: str) -> Callable[..., Any] | None:
    """What torch or NumPy call `name`, over traced values; None if it cannot be traced."""
    plain = name.strip("_")
    if plain in _COMPOSED:
        return _COMPOSED[plain]
    row = plain if plain in _SAME else _OTHER_NAMES.get(plain)
    if row is not None:
        return _unary_or_binary(row)
    if name.startswith("__r") and (straight := find(plain[1:])) is not None:
        return lambda x, y: straight(y, x)
    return None


def method(name: str) -> Callable[..., Any] | None:
    """The method `name` of a traced value."""
    if name == "where":  # x.where(condition, other)
        return lambda x, condition, other: apply("where", condition, x, other)
    return None if name in _NO_METHODS else find(name)


assert all(name in OPERATIONS for name in (*_SAME, *_OTHER_NAMES.values()))
__all__ = ["clamp", "find", "kind_of", "method"]
