"""Functions that cannot be traced: each error names the cause and shows the user's line."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn.variants import (
    Hook,
    Scalar,
    TraceError,
    Variant,
    alibi,
    causal,
    functions,
    relative_bias,
)

LEAKED: list[Any] = []


def _if(b: Any, h: Any, q: Any, k: Any) -> Any:
    if q > 3:  # here
        return q > k
    return q >= k


def _and(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k and k > 2  # here


def _chain(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - 3 < k <= q  # here


def _min(b: Any, h: Any, q: Any, k: Any) -> Any:
    return min(q, k) > 1  # here


def _float(b: Any, h: Any, q: Any, k: Any) -> Any:
    return math.exp(q) > k  # here


def _int(b: Any, h: Any, q: Any, k: Any) -> Any:
    return int(q) > k  # here


def _list(b: Any, h: Any, q: Any, k: Any) -> Any:
    return [1, 2, 3][h] > k  # here


def _range(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > sum(range(h))  # here


def _iterate(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > sum(q)  # here


def _len(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > len(q)  # here


def _item(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > q[0]  # here


def _complex(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > complex(q)  # here


def _key(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > {1: 2}.get(q, 3)  # here


def _string(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > q + "1"  # here


def _vector(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > np.arange(3) + q  # here


def _tensor(b: Any, h: Any, q: Any, k: Any) -> Any:
    return k > q + torch.ones(3, 2)  # here


def _torch(b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.fft.fft(q) > k  # here


def _torch_arguments(b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.softmax(q, 0) > k  # here


def _torch_keyword(b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.add(q, k, alpha=2) > k  # here


def _numpy(b: Any, h: Any, q: Any, k: Any) -> Any:
    return np.gcd(q, k) > k  # here


def _reduce(b: Any, h: Any, q: Any, k: Any) -> Any:
    return np.add.reduce(q) > k  # here


def _method(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q.cumsum() > k  # here


def _bits_of_a_float(b: Any, h: Any, q: Any, k: Any) -> Any:
    return ((q * 0.5) & k) > 3  # here


def _mixed_logic(b: Any, h: Any, q: Any, k: Any) -> Any:
    return (q > k) & h  # here


def _zero(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q // 0 == k  # here


def _maybe_zero(b: Any, h: Any, q: Any, k: Any, *, size: int = 4) -> Any:
    return q // size == k // size  # here


def _shift(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q << h == k  # here


def _large(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q > 1 << 40  # here


def _large_float(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q > 1e300  # here


def _nan(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q > float("nan")  # here


def _folded_nan(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q > functions.log(-1.0)  # here


def _digits(b: Any, h: Any, q: Any, k: Any) -> Any:
    return round(q * 0.5, 2) > k  # here


def _one_operand(b: Any, h: Any, q: Any, k: Any) -> Any:
    return torch.max(q) > k  # here


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (_digits, r"round\(\) of a traced value takes no number of digits"),
        (_one_operand, "max takes 2 operands, got 1"),
        (_if, r"has no truth value.*where\(\), &, \|, ~"),
        (_and, "has no truth value"),
        (_chain, "has no truth value.*a < b < c"),
        (_min, r"has no truth value.*minimum\(\)"),
        (_float, "is no Python float"),
        (_int, "is no Python int"),
        (_list, "cannot index a list, array or tensor"),
        (_range, "is no Python index"),
        (_iterate, "cannot be iterated over"),
        (_len, "has no length"),
        (_item, "cannot be indexed"),
        (_complex, "is no Python complex"),
        (_key, "cannot be hashed"),
        (_string, "a str is no operand"),
        (_vector, r"a ndarray of shape \(3,\) is no operand"),
        (_tensor, r"a Tensor of shape \(3, 2\) is no operand"),
        (_torch, r"torch\.fft_fft cannot be traced"),
        (_torch_arguments, r"torch\.softmax cannot be traced"),
        (_torch_keyword, r"torch\.add with these arguments cannot be traced.*alpha"),
        (_numpy, r"numpy\.gcd cannot be traced"),
        (_reduce, r"numpy\.add\.reduce of a traced value cannot be traced"),
        (_method, "a traced value has no attribute 'cumsum'"),
        (_bits_of_a_float, "and takes truth values, or integers; got a float and an integer"),
        (_mixed_logic, "and takes truth values, or integers; got a truth value and an integer"),
        (_zero, "integer division by 0, which may be 0"),
        (_maybe_zero, r"integer division by size, which may be 0.*lower=1"),
        (_shift, "shift by h, whose bounds are 0 and"),
        (_large, "1099511627776 is no 32-bit integer"),
        (_large_float, "too large for float32"),
        (_nan, "NaN is no constant"),
        (_folded_nan, "log of -1.0 is no number"),
    ],
    ids=lambda x: x.__name__ if callable(x) else None,
)
def test_the_users_line_is_shown(function: Any, message: str) -> None:
    with pytest.raises((TraceError, AttributeError), match=message) as caught:
        Variant("v", mask=function)
    _, where, line = str(caught.value).split("\n")
    assert line.endswith("# here")
    code = function.__code__
    assert where.startswith(f"  {code.co_filename}, line ")
    number = int(where.rsplit(" ", 1)[1].rstrip(":"))
    assert 1 <= number - code.co_firstlineno <= 3
    if isinstance(caught.value, TraceError):
        assert (caught.value.file, caught.value.line) == (code.co_filename, number)


def _leak(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q > LEAKED[0]


@pytest.mark.parametrize(
    ("role", "function", "message"),
    [
        ("mask", lambda b, h, q, k: None, "the mask function returns None; is a return missing"),
        ("mask", lambda b, h, q, k: q - k, "the mask function returns i32; it takes a truth value"),
        ("logits", lambda s, b, h, q, k: q > k, "the logits function returns a truth value"),
        ("mask", lambda b, h, q: q > h, r"takes 3 arguments; it is called with \(b, h, q_idx"),
        ("mask", lambda b, h, q, k, table: q > table, "takes 'table', which is no parameter"),
        (
            "mask",
            lambda b, h, q, k, table=(1, 2): q > table,
            "takes 'table', which is no parameter",
        ),
        ("mask", lambda b, h, q, k, on=True: q > on, "takes 'on', which is no parameter"),
        ("mask", _leak, "returns a value of another trace, of score"),
    ],
)
def test_what_a_function_takes_and_returns(role: str, function: Any, message: str) -> None:
    LEAKED.clear()
    Variant("v", logits=lambda s, b, h, q, k: LEAKED.append(s) or s)
    with pytest.raises(TraceError, match=message) as caught:
        Variant("v", **{role: function})
    assert f"{__file__}, line {function.__code__.co_firstlineno}" in str(caught.value)


def test_arguments_of_a_variant() -> None:
    with pytest.raises(TypeError, match="the mask of variant 'v' is a str; it takes a function"):
        Variant("v", mask="q_idx >= kv_idx")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="params of variant 'v' has a str; it takes Scalar"):
        Variant("v", params=["window"])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="two different parameters are called 'a'"):
        Variant("v", params=[Scalar("a", "i32", 0, ""), Scalar("a", "f32", 0, "")])
    with pytest.raises(ValueError, match=r"the logits of variant 'v' is hook 'causal'.*as mask"):
        Variant("v", logits=causal().mask)
    with pytest.raises(ValueError, match=r"the C\+\+ of hook 'x' is empty"):
        Hook("x", " ")


def test_arguments_of_built_ins() -> None:
    with pytest.raises(ValueError, match="num_qo_heads is 0; it takes 1 or more"):
        alibi(0)
    with pytest.raises(ValueError, match="bias_reach is -1; it takes 0 or more"):
        relative_bias(-1)


def test_a_users_own_error_is_left_alone() -> None:
    with pytest.raises(ZeroDivisionError):
        Variant("v", mask=lambda b, h, q, k: q > 1 // 0)


def test_the_profiler_is_given_back() -> None:
    import sys

    before = sys.getprofile()
    with pytest.raises(TraceError):
        Variant("v", mask=_if)
    assert sys.getprofile() is before
