"""`cute-attn show`: every view of a kernel, and errors."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from cute_attn.ampere import tiles
from cute_attn.workloads import load_steps

Invoke = Callable[..., Any]
DEMO_KERNEL = ("--arch", "sm_80", "--head-dim", "128", "--page-size", "16", "--group", "4")


def test_source_is_the_generated_file(invoke: Invoke) -> None:
    result = invoke("show", "--arch", "sm_90a", "--page-size", "16", "--variant", "causal")
    assert result.exit_code == 0
    name = result.output.splitlines()[0].removeprefix("// ")
    assert name.startswith("hopper_tile_bf16_d128_paged_g4_causal_sm_90a_")
    assert f"{name}(const __grid_constant__ " in result.output
    assert "\x1b" not in result.output


def test_decode_and_variant_options_choose_the_kernel(invoke: Invoke) -> None:
    result = invoke(
        "show", "--arch", "sm_90a", "--decode", "--dtype", "fp16", "--head-dim", "64",
        "--group", "8", "--variant", "causal+sliding_window",
    )  # fmt: skip
    name = result.output.splitlines()[0].removeprefix("// ")
    assert name.startswith("ampere_decode_fp16_d64_ragged_g8_causal_window_sm_90_")
    assert "window_left" in result.output


def test_lists_of_each_kv_head(invoke: Invoke) -> None:
    result = invoke("show", "--arch", "sm_90a", "--page-size", "16", "--per-head")
    name = result.output.splitlines()[0].removeprefix("// ")
    assert name.startswith("hopper_tile_bf16_d128_paged_g4_causal_per_head_sm_90a_")
    assert "HeadWalker" in result.output


def test_resources(demo_kernels: dict[str, Any], invoke: Invoke) -> None:
    result = invoke("show", *DEMO_KERNEL, "--what", "resources", "--json")
    assert result.exit_code == 0
    facts = json.loads(result.stdout)
    compiled = {kernel["name"]: kernel for kernel in demo_kernels["kernels"]}[facts["name"]]
    assert facts["registers"] == compiled["registers"]
    assert facts["smem_bytes"] == compiled["smem_bytes"]
    assert facts["lint"] == []
    assert facts["runs_on"] == ["sm_80", "sm_86", "sm_89"]
    text = invoke("show", *DEMO_KERNEL, "--what", "resources").output
    assert f"{facts['registers']}" in next(x for x in text.splitlines() if "registers  " in x)


def test_sass_is_machine_code_of_the_architecture(
    demo_kernels: dict[str, Any], invoke: Invoke
) -> None:
    result = invoke("show", *DEMO_KERNEL, "--what", "sass")
    assert result.exit_code == 0
    assert "HMMA.16816.F32.BF16" in result.output
    assert "LDGSTS" in result.output
    lines = result.output.splitlines()
    titles = [line for line in lines if line.startswith("== ")]
    assert len(titles) == 2 and any("main loop" in title for title in titles)
    marked = [line for line in lines if line[:2] in ("1|", "2|")]
    assert sum("HMMA" in line for line in marked) > 0.5 * sum("HMMA" in line for line in lines)
    loop = invoke("show", *DEMO_KERNEL, "--what", "loop").output.splitlines()
    assert [line for line in loop if line[:2] in ("1|", "2|")] == marked
    assert all(line[:2] in ("==", "1|", "1:", "2|", "2:") for line in loop)


def test_mix_counts_a_pass_of_the_main_loop(demo_kernels: dict[str, Any], invoke: Invoke) -> None:
    facts = json.loads(invoke("show", *DEMO_KERNEL, "--what", "mix", "--json").stdout)
    (main,) = (loop for loop in facts["main_loops"] if loop["main"])
    tile = tiles("sm_80", "ampere_tile", 128)
    # An HMMA takes 16 rows x 8 columns x 16 k: a warp's rows x keys x head_dim, for QK and for PV.
    products = tile.q // (tile.threads // 32) * tile.kv * 128 // (16 * 8 * 16)
    assert main["mix"]["tensor"] == products // 2 + products  # QK is a loop of two, counted once
    assert main["usual_pass"] == sum(main["mix"].values()) < main["instructions"]
    assert not main["local_memory"] and "other" not in facts["mix"]
    text = invoke("show", *DEMO_KERNEL, "--what", "mix").output
    assert f"{main['opcodes']['HMMA']} HMMA" in text


def test_resources_say_what_an_sm_holds(demo_kernels: dict[str, Any], invoke: Invoke) -> None:
    facts = json.loads(invoke("show", *DEMO_KERNEL, "--what", "resources", "--json").stdout)
    tile = tiles("sm_80", "ampere_tile", 128)
    assert facts["blocks_per_sm"] == tile.blocks_per_sm
    assert facts["warps_per_sm"] == tile.blocks_per_sm * tile.threads // 32
    assert "registers" in facts["limited_by"]
    assert facts["bytes_in_flight_per_sm"] == 2 * facts["bytes_in_flight_per_block"]
    assert facts["bytes_in_flight_per_block"] == tile.kv * 128 * 2


@pytest.mark.parametrize("variant", ["alibi(8)", "causal+rope(layout='interleaved')", "qk_norm"])
def test_any_built_in_variant(variant: str, invoke: Invoke) -> None:
    result = invoke("show", "--arch", "sm_90a", "--variant", variant)
    assert result.exit_code == 0, result.output
    assert variant.split("+")[-1].split("(")[0] in result.output.splitlines()[0]


def test_options_reach_other_tiles(invoke: Invoke) -> None:
    usual, few, long = (
        invoke("show", "--arch", "sm_90a", "--head-dim", "64", *options).output
        for options in ((), ("--rows", "8", "--schedule", "hopper_tile"), ("--long",))
    )
    assert "256 threads" in few and "512 threads" in long and "384 threads" in usual


@pytest.mark.usefixtures("kernel_cache")
def test_variant_and_its_instructions(invoke: Invoke) -> None:
    options = ("--arch", "sm_80", "--variant", "causal+soft_cap", "--what", "variant")
    text = invoke("show", *options).output
    assert text.startswith("variant causal_soft_cap\n") and "return tanh_approx(score);" in text
    assert text.endswith("\nlogits, in machine code of sm_80: 1 MUFU\n")
    facts = json.loads(invoke("show", *options, "--json").stdout)
    assert facts["instructions"]["logits"]["MUFU"] == 1
    assert facts["shown"] in text


def test_plan_of_a_real_step(invoke: Invoke) -> None:
    step = next(s for s in load_steps() if s.name == "mooncake-1400")
    options = ("--step", step.name, "--blocks", "64", "--json")
    result = invoke("show", *DEMO_KERNEL, "--what", "plan", *options)
    facts = json.loads(result.stdout)
    assert facts["requests"] == len(step.requests)
    assert facts["thread_blocks"] == 64
    # 4 query heads per KV head are packed in the rows of a tile, for each of 8 KV heads.
    rows = tiles("sm_80", "ampere_tile", 128).q
    assert facts["tiles"] == 8 * sum(math.ceil(4 * q / rows) for q in step.q_lens)
    assert facts["pieces"] >= facts["tiles"] > facts["split_tiles"] > 0
    assert 1 <= facts["imbalance"] < 1.1


def test_a_tile_override_changes_the_kernel(invoke: Invoke) -> None:
    usual = tiles("sm_80", "ampere_tile", 128)
    keys = 32 if usual.kv != 32 else 64
    as_is = invoke("show", *DEMO_KERNEL).output.split("#include")[0]
    result = invoke("show", *DEMO_KERNEL, "--tile", f"kv={keys}", "--tile", "stages=1")
    overridden = result.output.split("#include")[0]
    assert f"{keys} keys" in overridden and f"{usual.kv} keys" in as_is


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--tile", "kv=many"), 2, ["'kv=many'", "NAME=NUMBER", "stages"]),
        (("--tile", "rows=3"), 2, ["'rows=3'", "blocks_per_sm"]),
        (("--what", "plan", "--step", "monday"), 2, ["'monday'", "azure-chat-500"]),
        (("--variant", "alibo"), 2, ["'alibo'", "soft_cap"]),
        (("--variant", "alibi"), 2, ["'alibi'", "num_qo_heads"]),
        (("--rows", "3", "--decode"), 2, ["--rows", "without --decode"]),
        (("--what", "colour"), 2, ["colour", "sass"]),
        (("--what", "plan", "--per-head"), 2, ["--per-head", "one table"]),
        (("--tile", "kv=33"), 1, ["tile.kv is 33", "multiple of 16"]),
        (("--schedule", "hopper_tile"), 1, ["sm_80", "wgmma"]),
    ],
)
def test_wrong_input_is_one_line(
    arguments: tuple[str, ...], code: int, words: list[str], invoke: Invoke
) -> None:
    result = invoke("show", "--arch", "sm_80", *arguments)
    assert result.exit_code == code
    errors = [x for x in result.output.splitlines() if x.lower().startswith("error: ")]
    assert len(errors) == 1
    for word in words:
        assert word in errors[0]
