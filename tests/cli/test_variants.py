"""Variants as text on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

import cute_attn
from cute_attn import alibi, causal, rope
from cute_attn.cli.variants import BUILT_IN, variant_of

MINE = """
from cute_attn import Variant, causal

def near(b, h, q_idx, kv_idx, *, reach=8):
    return (q_idx - kv_idx < reach) & (kv_idx <= q_idx)

NEAR = Variant("near", mask=near)

def named(name="mine"):
    return Variant(name, mask=near)

NUMBER = 3
"""


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MINE)
    return path


def test_built_in_ones_are_all_there() -> None:
    functions = {
        name
        for name in cute_attn.__all__
        if getattr(getattr(cute_attn, name), "__module__", "")
        in ("cute_attn.variants.builtin", "cute_attn.variants.positions")
    }
    assert set(BUILT_IN) == functions - {"LinearScaling", "Llama3Scaling", "YarnScaling"}


def test_arguments_and_sums() -> None:
    assert variant_of("causal+alibi(8)") == causal() & alibi(8)
    assert variant_of("rope(layout='interleaved', rotary_dim=32)") == rope(
        layout="interleaved", rotary_dim=32
    )
    scaled = variant_of("rope(scaling=Llama3Scaling(factor=8.0))")
    assert scaled == rope(scaling=cute_attn.Llama3Scaling(factor=8.0))


def test_variants_of_ones_own(mine: Path) -> None:
    assert variant_of(f"{mine}:NEAR").name == "near"
    assert variant_of(f"{mine}:named").name == "mine"
    assert variant_of(f"{mine}:named('yours')+alibi(4)").name == "yours_alibi"
    assert variant_of("cute_attn:causal") == causal()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alibo", "there is no 'alibo'.* soft_cap"),
        ("alibi", "num_qo_heads"),
        ("alibi(x)", "there is no 'x'"),
        ("alibi(1 +", "alibi"),
        ("alibi([x for x in ()])", "neither a name nor"),
        ("causal+", "a variant is missing"),
        ("__import__('os')", "there is no '__import__'"),
        ("MINE:NUMBER", "is a int, not a Variant"),
        ("MINE:FAR", "there is no 'FAR'"),
        ("nowhere.py:NEAR", "no such file"),
        ("no.such.module:NEAR", "No module"),
    ],
)
def test_what_is_none_is_refused(text: str, words: str, mine: Path) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        variant_of(text.replace("MINE", str(mine)))
    assert "\n" not in str(caught.value)
