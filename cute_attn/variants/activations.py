"""torch's activation functions over traced values, by torch's names and arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cute_attn.variants.traced import Traced, apply


def softplus(x: Any, beta: float = 1, threshold: float = 20) -> Traced:
    """log(1 + exp(beta x)) / beta; x where beta x is above `threshold`."""
    scaled = x * beta
    return apply("where", scaled > threshold, x, apply("log", 1 + apply("exp", scaled)) / beta)


def gelu(x: Any, *, approximate: str = "none") -> Traced:
    """x Phi(x), by the error function or by tanh."""
    if approximate == "tanh":
        bent = apply("tanh", 0.7978845608028654 * (x + 0.044715 * x * x * x))
    else:
        bent = apply("erf", x * 0.7071067811865476)
    result: Traced = 0.5 * x * (1 + bent)
    return result


def relu(x: Any, inplace: bool = False) -> Traced:
    """x, or 0 if that is less."""
    return apply("max", x, 0)


def silu(x: Any, inplace: bool = False) -> Traced:
    """x sigmoid(x)."""
    return apply("mul", x, apply("sigmoid", x))


def elu(
    x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0, inplace: bool = False
) -> Traced:
    """scale x for x > 0, else scale alpha (exp(input_scale x) - 1)."""
    below = alpha * (apply("exp", input_scale * apply("min", x, 0.0)) - 1)
    return apply("mul", scale, apply("where", x > 0, x, below))


def celu(x: Any, alpha: float = 1.0, inplace: bool = False) -> Traced:
    """x for x > 0, else alpha (exp(x / alpha) - 1)."""
    return elu(x, alpha, input_scale=1 / alpha)


def selu(x: Any, inplace: bool = False) -> Traced:
    """`elu` with the constants of self-normalising networks (Klambauer et al., 2017)."""
    return elu(x, 1.6732632423543772, 1.0507009873554805)


def leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Traced:
    """x for x > 0, else negative_slope x."""
    return apply("where", x > 0, x, negative_slope * x)


def hardtanh(x: Any, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> Traced:
    """x between two numbers."""
    return apply("min", apply("max", x, min_val), max_val)


def relu6(x: Any, inplace: bool = False) -> Traced:
    """x between 0 and 6."""
    return hardtanh(x, 0, 6)


def hardsigmoid(x: Any, inplace: bool = False) -> Traced:
    """x / 6 + 1 / 2, between 0 and 1."""
    return hardtanh(x * (1 / 6) + 0.5, 0.0, 1.0)


def hardswish(x: Any, inplace: bool = False) -> Traced:
    """x hardsigmoid(x)."""
    return apply("mul", x, hardsigmoid(x))


def log_sigmoid(x: Any) -> Traced:
    """log(sigmoid(x)), where x is far below 0 as well."""
    return apply("min", x, 0.0) - apply("log", 1 + apply("exp", -apply("abs", x)))


def mish(x: Any, inplace: bool = False) -> Traced:
    """x tanh(softplus(x))."""
    return apply("mul", x, apply("tanh", softplus(x)))


def softsign(x: Any) -> Traced:
    """x / (1 + |x|)."""
    return apply("div", x, 1 + apply("abs", x))


def threshold(x: Any, threshold: float, value: float, inplace: bool = False) -> Traced:
    """x where it is above `threshold`, else `value`."""
    return apply("where", x > threshold, x, value)


ACTIVATIONS: dict[str, Callable[..., Traced]] = {
    f.__name__: f
    for f in (
        softplus, gelu, relu, silu, elu, celu, selu, leaky_relu, hardtanh, relu6, hardsigmoid,
        hardswish, log_sigmoid, mish, softsign, threshold,
    )
}  # fmt: skip
"""By what torch calls them."""
