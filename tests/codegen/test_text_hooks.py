"""Hooks in C++: statements, combination with traced ones, compiler errors in the user's lines."""

from __future__ import annotations

import re
from typing import Any

import pytest

from cute_attn import build, warmup
from cute_attn.codegen.source import INCLUDE_DIR
from cute_attn.runtime import CompileRequest, compile_source
from cute_attn.runtime.errors import CompileError
from cute_attn.variants import (
    Hook,
    Scalar,
    Variant,
    causal,
    chunked_local,
    document_mask,
    sliding_window,
    soft_cap,
)
from tests.ampere.specs import make_spec
from tests.codegen.test_traced_hooks import kernel

STATEMENTS = Hook(
    "triangle",
    """
    int const distance = q_idx - kv_idx;
    if (distance < 0) return false;
    return (distance & (distance + 1)) == 0 || distance < span;
    """,
)
SPAN = Scalar("span", "i32", 7, "keys that are always visible")


def compiled(variant: Variant) -> str:
    """The source, which compiles."""
    source = kernel(variant)
    assert compile_source(CompileRequest(source, "k", "sm_90", (INCLUDE_DIR,))).lint() == []
    return source


def test_statements() -> None:
    source = compiled(Variant("triangle", mask=STATEMENTS, params=[SPAN]))
    assert "int32_t const span = params.span;" in source
    assert STATEMENTS.has_statements and not causal().mask.has_statements  # type: ignore[union-attr]


def test_lines_behind_a_text_are_those_of_the_kernel() -> None:
    lines = kernel(Variant("triangle", mask=STATEMENTS, params=[SPAN])).split("\n")
    directives = [(i, found) for i, line in enumerate(lines)
                  if (found := re.fullmatch(r'#line (\d+) "(.*)"', line))]  # fmt: skip
    assert [found[2] for _, found in directives] == ["hook triangle", "kernel.cu"]
    assert directives[0][1][1] == "1"
    index, back = directives[1]
    assert int(back[1]) == index + 2  # the line after the directive, counted from 1
    assert "#line" not in kernel(causal() & soft_cap())


def test_text_and_traced_masks_combine() -> None:
    both = causal() & Variant("triangle", mask=STATEMENTS, params=[SPAN]) & sliding_window()
    assert both.mask is not None and len(both.mask.parts) == 3
    assert both.band.left == "window_left" and both.band.right == 0 and not both.band_is_mask
    source = compiled(both)
    assert (
        "return variant_mask_0(params, values, b, h, q_idx, kv_idx, lag) && variant_mask_1("
        in source
    )
    assert [s.name for s in both.scalars] == ["span", "window_left"]
    with pytest.raises(ValueError, match=r"hook 'triangle' is C\+\+ text without evaluate="):
        both.mask(0, 0, 1, 2, span=1, window_left=2)
    twin = Hook("even", "kv_idx % 2 == 0", lambda b, h, q, k, **_: k % 2 == 0)
    even = causal() & Variant("even", mask=twin)
    assert even.mask is not None
    assert [bool(even.mask(0, 0, 3, k)) for k in range(6)] == [True, False, True] + 3 * [False]


def test_text_may_call_its_own_what_it_likes() -> None:
    text = "int const lag = q_idx - kv_idx; int const values = 3; return lag > values;"
    compiled(Variant("own", mask=Hook("own", text)))


def test_traced_parts_beside_text_are_whole() -> None:
    """Two of them may have values of a row of the same name."""
    even = Variant("even", mask=Hook("even", "kv_idx % 2 == 0"))
    source = compiled(chunked_local() & even & document_mask())
    assert "struct RowValues {};" in source and "variant_mask_2(" in source


def wrong_line(marker: str) -> int:
    """The line of this file that holds a marker."""
    with open(__file__) as file:
        lines = file.read().split("\n")
    return next(i for i, line in enumerate(lines, 1) if marker in line and "marker" not in line)


MISSPELT = Hook("misspelt", "kv_idx <= q_idx && kv_idx > q_idx - windw")
WRONG = Hook(
    "wrong",
    """
    float const slope = exp2f(-8.0f * (h + 1));
    float const bias = slope * distance;  // no such name
    return score + bias;
    """,
)


@pytest.mark.parametrize(
    ("variant", "text", "error"),
    [
        (Variant("a", mask=MISSPELT), "q_idx - windw", 'identifier "windw" is undefined'),
        (Variant("a", logits=WRONG), "// no such name", 'identifier "distance" is undefined'),
        (causal() & Variant("a", mask=MISSPELT), "q_idx - windw", 'identifier "windw"'),
    ],
)
def test_a_compile_error_shows_the_users_line(variant: Variant, text: str, error: str) -> None:
    with pytest.raises(CompileError) as caught:
        build(make_spec("ampere_decode", head_dim=64, variant=variant))
    line = wrong_line(text)
    assert f"{__file__}({line}): error: {error}" in str(caught.value)
    assert caught.value.errors[0].startswith(f"{__file__}({line}): error: {error}")
    assert "kernel.cu(" not in "\n".join(caught.value.errors)


def test_so_do_errors_of_warmup() -> None:
    spec = make_spec("ampere_decode", head_dim=64, variant=Variant("a", mask=MISSPELT))
    with pytest.raises(CompileError, match=f"{__file__}.*{wrong_line('q_idx - windw')}.: error"):
        warmup([spec], jobs=1)


def test_a_text_that_is_no_literal_is_numbered_by_itself() -> None:
    text = "\n".join(["", "kv_idx <=", "windw"])
    with pytest.raises(CompileError, match=r'hook made\(3\): error: identifier "windw"'):
        build(
            make_spec("ampere_decode", head_dim=64, variant=Variant("a", mask=Hook("made", text)))
        )


def test_the_kernel_does_not_depend_on_where_the_text_stands() -> None:
    def one() -> Any:
        return Variant("a", mask=Hook("near", "kv_idx > q_idx - 3"))

    def other() -> Any:
        return Variant("a", mask=Hook("near", "kv_idx > q_idx - 3"))

    assert one() == other() and kernel(one()) == kernel(other())
    assert hash(one()) == hash(other())
