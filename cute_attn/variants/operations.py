"""The table of operations: for each its types, C++ text, NumPy function, interval rule and cost.

Operators and functions are rows alike. Functions of float32 are the fast ones of the GPU; their
C++ is in `cute_attn/hook_functions.hpp` unless CUDA has it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cute_attn.variants import interval
from cute_attn.variants.interval import Interval

# C++ precedence, larger binds tighter.
ATOM, UNARY, PRODUCT, SUM, SHIFT, ORDER, EQUALITY = 16, 15, 13, 12, 11, 9, 8
BIT_AND, BIT_XOR, BIT_OR, AND, OR, CHOICE = 7, 6, 5, 4, 3, 2

FP32, MUFU, INT = "FP32", "MUFU", "INT"


@dataclass(frozen=True)
class Operation:
    """One row.

    Attributes:
        name: of the operation in expressions and messages.
        rule: how operands are converted and what comes out; see `typing_rules`.
        cpp: by kind of the operands ("" for any): a `format` text of the operands.
        precedence: of the C++ text.
        numpy: the same over NumPy arrays.
        interval: bounds of the result from bounds of the operands.
        cost: instructions by class, or None: one of the class of the operands' kind.
        error: relative and absolute, of the float32 result; its interval is widened by it.
    """

    name: str
    rule: str
    cpp: Mapping[str, str]
    precedence: int
    numpy: Callable[..., Any]
    interval: Callable[..., Interval]
    cost: Mapping[str, int] | None = None
    error: tuple[float, float] = (2.0**-20, 1e-37)

    @property
    def arity(self) -> int:
        return next(iter(self.cpp.values())).count("{")


_EXACT = (0.0, 0.0)
_APPROXIMATE = (1e-5, 1e-5)

OPERATIONS: dict[str, Operation] = {}


def _row(
    name: str,
    rule: str,
    cpp: str | Mapping[str, str],
    precedence: int,
    numpy: Callable[..., Any],
    interval: Callable[..., Interval],
    **rest: Any,
) -> None:
    texts = {"": cpp} if isinstance(cpp, str) else cpp
    OPERATIONS[name] = Operation(name, rule, texts, precedence, numpy, interval, **rest)


def _function(
    name: str,
    cpp: str,
    numpy: Callable[..., Any],
    interval: Callable[..., Interval],
    cost: Mapping[str, int],
    error: tuple[float, float] = _APPROXIMATE,
) -> None:
    _row(name, "float", cpp, ATOM, numpy, interval, cost=cost, error=error)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _sigmoid2(x: Any) -> Any:
    return _sigmoid(x * math.log(2))


def _power(x: Any, y: Any) -> Any:
    return np.exp2(y * np.log2(x))  # as the kernel computes it: NaN for negative x


_erf = np.vectorize(math.erf, otypes=[float])


def _rounded(function: Callable[[Any], Any]) -> Callable[[Interval], Interval]:
    return lambda x: (function(x[0]), function(x[1]))


# Arithmetic.
_row("neg", "number", "-{}", UNARY, np.negative, interval.neg, error=_EXACT)
_row("add", "number", "{} + {}", SUM, np.add, interval.add)
_row("sub", "number", "{} - {}", SUM, np.subtract, interval.sub)
_row("mul", "number", "{} * {}", PRODUCT, np.multiply, interval.mul)
_row(
    "div", "float", "__fdividef({}, {})", ATOM, np.true_divide, interval.div,
    cost={MUFU: 1, FP32: 1},
)  # fmt: skip
_row(
    "floordiv", "integer", "floor_div({}, {})", ATOM, np.floor_divide, interval.floor_div,
    cost={INT: 20},
)  # fmt: skip
_row("mod", "integer", "floor_mod({}, {})", ATOM, np.remainder, interval.floor_mod, cost={INT: 21})
_row("abs", "number", {"f32": "fabsf({})", "": "abs({})"}, ATOM, np.abs, interval.absolute,
     error=_EXACT)  # fmt: skip
_row("min", "number", {"f32": "fminf({}, {})", "": "min({}, {})"}, ATOM, np.fmin,
     interval.minimum, error=_EXACT)  # fmt: skip
_row("max", "number", {"f32": "fmaxf({}, {})", "": "max({}, {})"}, ATOM, np.fmax,
     interval.maximum, error=_EXACT)  # fmt: skip
_row("lshift", "integer", "{} << {}", SHIFT, np.left_shift, interval.shift_left)
_row("rshift", "integer", "{} >> {}", SHIFT, np.right_shift, interval.shift_right)

# Comparisons, logic, bits.
_row("lt", "compare", "{} < {}", ORDER, np.less, interval.less)
_row("le", "compare", "{} <= {}", ORDER, np.less_equal, interval.less_equal)
_row("gt", "compare", "{} > {}", ORDER, np.greater, lambda x, y: interval.less(y, x))
_row("ge", "compare", "{} >= {}", ORDER, np.greater_equal, lambda x, y: interval.less_equal(y, x))
_row("eq", "compare", "{} == {}", EQUALITY, np.equal, interval.equal)
_row("ne", "compare", "{} != {}", EQUALITY, np.not_equal,
     lambda x, y: interval.invert(interval.equal(x, y)))  # fmt: skip
_row("and", "logic", "{} && {}", AND, np.logical_and, interval.minimum)
_row("or", "logic", "{} || {}", OR, np.logical_or, interval.maximum)
_row("xor", "logic", "{} != {}", EQUALITY, np.logical_xor, interval.logical_xor)
_row("not", "logic", "!{}", UNARY, np.logical_not, interval.invert)
_row("bit_and", "integer", "{} & {}", BIT_AND, np.bitwise_and, interval.bitwise_and)
_row("bit_or", "integer", "{} | {}", BIT_OR, np.bitwise_or, interval.unknown_integer)
_row("bit_xor", "integer", "{} ^ {}", BIT_XOR, np.bitwise_xor, interval.unknown_integer)
_row("bit_not", "integer", "~{}", UNARY, np.bitwise_not, lambda x: (-x[1] - 1, -x[0] - 1))
_row("where", "choice", "{} ? {} : {}", CHOICE, np.where, interval.where, error=_EXACT)

# Conversions.
_row("to_i32", "to_i32", "int({})", ATOM, np.trunc, _rounded(np.trunc), cost={INT: 1})
_row("to_f32", "to_f32", "float({})", ATOM, np.asarray, lambda x: x, cost={INT: 1})

# Functions of float32.
_function("exp", "fast_exp({})", np.exp, interval.monotone(np.exp), {MUFU: 1, FP32: 1})
_function("exp2", "exp2_approx({})", np.exp2, interval.monotone(np.exp2), {MUFU: 1})
_function("log", "__logf({})", np.log, interval.monotone(np.log, 0.0), {MUFU: 1, FP32: 1})
_function("log2", "__log2f({})", np.log2, interval.monotone(np.log2, 0.0), {MUFU: 1})
_function("tanh", "fast_tanh({})", np.tanh, interval.monotone(np.tanh), {MUFU: 2, FP32: 3})
_function("sigmoid", "fast_sigmoid({})", _sigmoid, interval.monotone(_sigmoid), {MUFU: 2, FP32: 2})
_function("tanh_approx", "tanh_approx({})", np.tanh, interval.monotone(np.tanh), {MUFU: 1},
          (2.0**-10, 1e-37))  # fmt: skip
_function("sigmoid_approx", "sigmoid_approx({})", _sigmoid, interval.monotone(_sigmoid),
          {MUFU: 1, FP32: 6, INT: 1}, (2.0**-12, 1e-37))  # fmt: skip
_function("sigmoid2_approx", "sigmoid2_approx({})", _sigmoid2, interval.monotone(_sigmoid2),
          {MUFU: 1, FP32: 5, INT: 1}, (2.0**-12, 1e-37))  # fmt: skip
_function("sqrt", "fast_sqrt({})", np.sqrt, interval.monotone(np.sqrt, 0.0), {MUFU: 1})
_function("rsqrt", "rsqrtf({})", lambda x: 1 / np.sqrt(x), interval.rsqrt, {MUFU: 1})
_function("sin", "fast_sin({})", np.sin, interval.wave, {MUFU: 1, FP32: 4})
_function("cos", "fast_cos({})", np.cos, interval.wave, {MUFU: 1, FP32: 4})
_function("pow", "fast_pow({}, {})", _power, interval.unknown, {MUFU: 2, FP32: 1})
_function("erf", "erff({})", _erf, interval.monotone(_erf), {FP32: 14, MUFU: 1})
_function("floor", "floorf({})", np.floor, _rounded(np.floor), {FP32: 1}, _EXACT)
_function("ceil", "ceilf({})", np.ceil, _rounded(np.ceil), {FP32: 1}, _EXACT)
_function("trunc", "truncf({})", np.trunc, _rounded(np.trunc), {FP32: 1}, _EXACT)
_function("round", "rintf({})", np.rint, _rounded(np.rint), {FP32: 1}, _EXACT)
