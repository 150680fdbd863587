"""Functions for traced hooks; of floats unless they say otherwise. torch's work as well."""

from __future__ import annotations

from typing import Any

from cute_attn.variants.library import clamp
from cute_attn.variants.traced import Traced, apply
from cute_attn.variants.vectors import turn

__all__ = [
    "abs", "ceil", "clamp", "cos", "erf", "exp", "exp2", "floor", "log", "log2", "maximum",
    "minimum", "round", "rsqrt", "sigmoid", "sigmoid2_approx", "sigmoid_approx", "sin", "sqrt",
    "tanh", "tanh_approx", "trunc", "turn", "where",
]  # fmt: skip


def where(condition: Any, x: Any, y: Any) -> Traced:
    """`x` if `condition`, else `y`; of any kind."""
    return apply("where", condition, x, y)


def minimum(x: Any, y: Any) -> Traced:
    """The smaller of two; of any kind. NaN counts as missing."""
    return apply("min", x, y)


def maximum(x: Any, y: Any) -> Traced:
    """The larger of two; of any kind. NaN counts as missing."""
    return apply("max", x, y)


def abs(x: Any) -> Traced:
    """|x|; of any kind."""
    return apply("abs", x)


def exp(x: Any) -> Traced:
    """e^x."""
    return apply("exp", x)


def exp2(x: Any) -> Traced:
    """2^x."""
    return apply("exp2", x)


def log(x: Any) -> Traced:
    """Natural logarithm."""
    return apply("log", x)


def log2(x: Any) -> Traced:
    """Logarithm to base 2."""
    return apply("log2", x)


def tanh(x: Any) -> Traced:
    """Hyperbolic tangent, to 1e-6."""
    return apply("tanh", x)


def sigmoid(x: Any) -> Traced:
    """1 / (1 + e^-x)."""
    return apply("sigmoid", x)


def tanh_approx(x: Any) -> Traced:
    """Hyperbolic tangent in one instruction, to a relative error of 2^-11 (5e-4). So
    (1 + tanh_approx(x / 2)) / 2 is a sigmoid to an absolute error of 2.5e-4: for weights near 1
    what bf16 rounding does, for small ones far too much."""
    return apply("tanh_approx", x)


def sigmoid_approx(x: Any) -> Traced:
    """1 / (1 + e^-x) to a relative error of 2^-12.8 (1.4e-4), a tenth of what rounding to bf16
    does: one MUFU operation rather than two."""
    return apply("sigmoid_approx", x)


def sigmoid2_approx(x: Any) -> Traced:
    """1 / (1 + 2^-x), as `sigmoid_approx`. A score that comes times log2(e) is multiplied with it
    by what multiplies scores in any case."""
    return apply("sigmoid2_approx", x)


def sqrt(x: Any) -> Traced:
    """Square root."""
    return apply("sqrt", x)


def rsqrt(x: Any) -> Traced:
    """1 / sqrt(x)."""
    return apply("rsqrt", x)


def sin(x: Any) -> Traced:
    """Sine of radians; to 1e-6 for |x| below 1e5."""
    return apply("sin", x)


def cos(x: Any) -> Traced:
    """Cosine of radians; to 1e-6 for |x| below 1e5."""
    return apply("cos", x)


def erf(x: Any) -> Traced:
    """The error function."""
    return apply("erf", x)


def floor(x: Any) -> Traced:
    """Rounded down, a float."""
    return apply("floor", x)


def ceil(x: Any) -> Traced:
    """Rounded up, a float."""
    return apply("ceil", x)


def trunc(x: Any) -> Traced:
    """Rounded towards 0, a float."""
    return apply("trunc", x)


def round(x: Any) -> Traced:
    """Rounded to the nearest, to even between two; a float."""
    return apply("round", x)
