"""`cute-attn diff`: what differs between two kernels, and errors."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from cute_attn.cli.spec_options import SpecOptions, with_words

Invoke = Callable[..., Any]
DEMO = "arch=sm_80 head-dim=128 page-size=16 group=4"


def test_words_are_the_options_of_show() -> None:
    base = with_words(SpecOptions(), f"{DEMO} tile.kv=32 tile.stages=1 --variant=alibi(8)", "A")
    assert base == SpecOptions(
        arch="sm_80", page_size=16, tile=("kv=32", "stages=1"), variant="alibi(8)"
    )
    other = with_words(base, "decode tile.kv=64 variant=rope(layout='half', theta=1e6)", "B")
    assert other.decode and other.tile == ("stages=1", "kv=64")
    assert other.variant == "rope(layout='half', theta=1e6)"
    assert not with_words(other, "decode=no", "B").decode


def test_two_kernels(demo_kernels: dict[str, Any], invoke: Invoke) -> None:
    facts = json.loads(invoke("diff", DEMO, "decode", "--json").stdout)
    assert set(facts["names"]) <= {kernel["name"] for kernel in demo_kernels["kernels"]}
    assert facts["spec"]["schedule"] == ["ampere_tile", "ampere_decode"]
    assert "dtype" not in facts["spec"] and "variant" not in facts["spec"]
    compiled = {kernel["name"]: kernel for kernel in demo_kernels["kernels"]}
    assert facts["resources"]["registers"] == [
        compiled[name]["registers"] for name in facts["names"]
    ]
    first, second = facts["main_loop"]["tensor"]
    assert first > second > 0
    assert facts["source"].startswith(f"--- {facts['names'][0]}\n+++ {facts['names'][1]}\n")


def test_text(invoke: Invoke) -> None:
    options = ("diff", DEMO, "tile.stages=2 tile.blocks_per_sm=1 variant=full", "--no-compile")
    text = invoke(*options).output
    (row,) = (line for line in text.split("@@")[0].splitlines() if line.startswith(" variant"))
    assert row.split() == ["variant", "causal", "full"]
    assert "tile.stages" in text and "@@" in text and "registers" not in text.split("@@")[0]
    assert "@@" not in invoke(*options, "--no-source").output
    same = invoke("diff", DEMO, "", "--no-compile")
    assert same.exit_code == 0 and same.output.startswith("the same kernel: ampere_tile_")


@pytest.mark.parametrize(
    ("first", "second", "code", "words"),
    [
        ("arch=sm_80 colour=1", "", 2, ["SPEC_A", "'colour=1'", "page_size"]),
        (DEMO, "group=many", 2, ["SPEC_B", "'group=many'", "number"]),
        (DEMO, "arch=sm_70", 2, ["SPEC_B", "'arch=sm_70'", "sm_90a"]),
        (DEMO, "decode=maybe", 2, ["SPEC_B", "yes or no"]),
        (DEMO, "tile.rows=3", 2, ["'rows=3'", "blocks_per_sm"]),
        (DEMO, "variant=alibo", 2, ["'alibo'", "soft_cap"]),
        (DEMO, "tile.kv=33", 1, ["tile.kv is 33"]),
        (DEMO, "schedule=hopper_tile", 1, ["sm_80", "wgmma"]),
    ],
)
def test_wrong_input_is_one_line(
    first: str, second: str, code: int, words: list[str], invoke: Invoke
) -> None:
    result = invoke("diff", first, second, "--no-compile")
    assert result.exit_code == code
    (error,) = (x for x in result.output.splitlines() if x.lower().startswith("error: "))
    for word in words:
        assert word in error
