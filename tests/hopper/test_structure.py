"""What the generated Hopper source contains, and what it must not."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from cute_attn import hopper
from cute_attn.codegen.spec import KernelSpec, UnsupportedSpecError
from cute_attn.codegen.vector_hooks import vector_hooks
from cute_attn.variants import (
    Hook,
    Tensor,
    Variant,
    alibi,
    attention_sinks,
    causal,
    document_mask,
    full,
    prefix_lm,
    relative_bias,
    rope,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    tree_mask,
)


def spec(
    head_dim: int = 128,
    loader: str = "ragged",
    variant: Variant | None = None,
    *,
    dtype: str = "bf16",
    group: int = 4,
    arch: str = "sm_90a",
    head_dim_vo: int | None = None,
) -> KernelSpec:
    variant, vo = variant or full(), head_dim_vo or head_dim
    tile = hopper.default_tile(head_dim, vo, loader, variant)
    assert tile is not None
    return KernelSpec(arch, "hopper_tile", dtype, head_dim, vo, loader, group, variant, tile)


def text(*args: object, **kwargs: object) -> str:
    return hopper.emit(spec(*args, **kwargs)).text  # type: ignore[arg-type]  # test shorthand


def even_keys() -> Variant:
    """A mask that is no band: it decides in every KV block."""
    hook = Hook("even", "kv_idx % 2 == 0", lambda b, h, q, kv, **_: np.asarray(kv) % 2 == 0)
    return Variant("even", mask=hook, band_is_mask=False)


def doubled() -> Variant:
    return Variant("doubled", output=lambda out, b, h, q_idx, d: 2 * out)


def sinks() -> Variant:
    """A mask that is no band, whose blocks are classified."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, first: int = 4, window: int = 64) -> Any:
        return (kv_idx <= q_idx) & ((kv_idx < first) | (kv_idx > q_idx - window))

    return Variant("sinks", mask=mask)


VARIANTS = (
    full(),
    causal(),
    causal() & sliding_window(),
    causal() & soft_cap(),
    causal() & sliding_window() & soft_cap(),
    even_keys(),
    causal() & attention_sinks(),
    causal() & sigmoid_attention(512),
    sinks(),
    prefix_lm() & alibi(8),
)


def test_deterministic_and_named() -> None:
    s = spec(variant=causal())
    assert hopper.emit(s).text == hopper.emit(s).text
    assert f"{s.name}(const __grid_constant__ cute_attn::Params params)" in hopper.emit(s).text
    assert spec(group=4).name != spec(group=5).name


def test_unmasked_kernel_has_no_mask_code_but_for_the_tail() -> None:
    source = text()
    assert "variant_mask" not in source and "hooked_scores.hpp" not in source
    assert source.count("mask_keys(") == 2  # its definition and the prologue
    assert "if (valid_keys < kTileKV) mask_keys(" in source
    assert "step(block, cute::true_type{})" not in source


@pytest.mark.parametrize("loader", ["ragged", "gather"])  # one loop, and two
def test_causal_masks_the_right_edge_only(loader: str) -> None:
    source = text(loader=loader, variant=causal())
    assert "item.interior_end" in source and "item.interior_begin" not in source
    own = {"ragged": ["block >= right_edge"], "gather": ["cute::true_type{}", "cute::false_type{}"]}
    assert re.findall(r" step\(block, (.*)\);", source) == own[loader]


@pytest.mark.parametrize("dims", [(128, 128), (192, 128)])  # one loop, and three
def test_window_masks_both_edges(dims: tuple[int, int]) -> None:
    source = text(dims[0], head_dim_vo=dims[1], variant=causal() & sliding_window())
    steps = re.findall(r" step\(block, (.*)\);", source)
    if dims == (128, 128):
        assert steps == ["block >= right_edge || block < left_edge"]
    else:
        assert steps == ["cute::true_type{}", "cute::false_type{}"]  # the first for both edges
        assert "right_edge = block_begin;" in source
    assert "int const begin = own - min(params.window_left, 1 << 30);" in source


def test_a_mask_that_is_no_band_is_applied_to_every_block() -> None:
    source = text(variant=even_keys())
    assert "cute::false_type" not in source
    assert "kv_idx % 2 == 0" in source


@pytest.mark.parametrize("loader", ["ragged", "paged", "gather"])
@pytest.mark.parametrize("group", [4, 3])
def test_every_role_walks_the_visible_blocks(loader: str, group: int) -> None:
    """Items, K, V and consumers: none of them looks at a block that is not visible."""
    source = text(loader=loader, group=group, variant=sinks())
    producers, _, consumers = source.partition("---- consumers")
    walks = 1  # of K and V
    assert producers.count("Blocks blocks(params, item, item.block_begin,") == walks
    assert producers.count("next_visible<Blocks>(work, params, item)) item.num_rows = 0;") == 1
    assert producers.count("work.next(item)") == 1
    assert "--block" not in source and "block_end - 2" not in source
    assert consumers.count("blocks = Blocks::at_last(params, item_record(smem, index") == 2
    assert "write_empty_item(params, item, smem.merges)" in consumers
    locations = re.findall(r"(?:locate|look_up)[^;]*;", producers)
    assert not any("block - 1" in place or "block_end" in place for place in locations)


def test_full_blocks_go_without_mask_code() -> None:
    one_copy, two_copies = (text(d, variant=prefix_lm()) for d in (128, 64))
    assert "while (block >= 0) step(block, !blocks.full);" in one_copy
    assert re.findall(r"step\(block, cute::(\w+)_type", two_copies) == ["true", "false"]
    for source in (one_copy, two_copies):
        call = "mask_scores<kTileKV, kGroup>(params, item, values, n, neg_infinity(), score)"
        assert source.count("(params, item, values, n,") == source.count(f"if (masked) {call}") == 1
        assert "transform_scores" not in source
    bent = text(variant=prefix_lm() & alibi(8))
    start = bent.index("auto step")
    step = bent[start : bent.index("while (block >= 0)", start)]
    assert step.index("transform_scores<") < step.index("if (masked) mask_scores<")


def test_flat_blocks_only_where_hooks_read_at_keys() -> None:
    relative = text(variant=causal() & relative_bias(128))
    assert "if (flat) {\n        shift_rows<kGroup>(" in relative and "flat_row(" not in relative
    assert "FlatBlocks<Params, kTileKV, kGroup> flat_blocks(" in relative
    document = text(variant=causal() & document_mask())
    assert "if (masked && flat) mask_rows(params, item, values, elements, n, score);" in document
    assert "VisibleBlocks<Params, kTileKV, kGroup, 1, true>" in document
    assert "variant_flat(" not in document  # variant_block says it
    weights = Variant("w", logits=lambda s, b, h, q, k, *, t: s * t[k // 64], softmax=False,
                      params=[Tensor("t", "f32", 1)])  # fmt: skip
    assert "transform_flat<" in text(variant=weights)
    for variant in (causal(), causal() & alibi(8), prefix_lm(), tree_mask()):
        assert "flat" not in text(variant=variant).lower(), variant


def test_logits_hook_only_where_the_variant_has_one() -> None:
    assert "variant_logits" not in text(variant=causal())
    capped = text(variant=soft_cap())
    assert "float variant_logits(" in capped
    assert capped.count("transform_scores<kTileKV, kGroup>(params, item, values, ") == 2


def test_weights_in_the_place_of_a_softmax() -> None:
    plain, sigmoid = text(variant=causal()), text(variant=causal() & sigmoid_attention(512))
    assert "LazyWeights" not in plain and "LazySoftmax" not in sigmoid
    assert "softmax = LazyWeights(1.f);" in sigmoid  # the hook is given scaled scores
    assert "softmax = LazyWeights(params.scale_log2);" in text(variant=Variant("x", softmax=False))
    # Hidden keys weigh nothing.
    assert "begin" not in sigmoid[sigmoid.index("keep_columns(") :].split(";")[0]
    assert "keep_columns(score, half, 0, end, 0.f);" in sigmoid
    assert "keep_columns(score, half, 0, end);" in plain
    assert "values, n, 0.f, score);" in text(variant=even_keys() & sigmoid_attention(512))
    assert "NoRowHooks, false>;" in sigmoid and "RowHooks" not in plain


def test_hooks_on_rows_only_where_there_are_some() -> None:
    sinks, both = text(variant=attention_sinks()), text(variant=attention_sinks() & doubled())
    assert "finished_row.hpp" not in text() and "finished_row.hpp" in sinks
    assert ", RowHooks, true>;" in sinks and ", RowHooks, true>;" in both
    assert "variant_row_state" in sinks and "variant_output" not in sinks
    assert "variant_output" in both
    # Nothing else of the kernel changes.
    loop = sinks.index("---- consumers")
    assert sinks[loop:].replace(spec(variant=attention_sinks()).name, "") == text()[
        text().index("---- consumers") :
    ].replace(spec().name, "")


def test_loaders_print_only_their_own_producer() -> None:
    ragged, paged, gather = (text(loader=name) for name in ("ragged", "paged", "gather"))
    assert "page_table" not in ragged and "page_size" not in ragged
    loads = {"ContiguousBlock": ragged, "GroupedBlock": paged, "RowsK::copy(": gather}
    for load, owner in loads.items():
        assert [load in source for source in (ragged, paged, gather)] == [
            source is owner for source in (ragged, paged, gather)
        ]
    assert "k_map" not in gather and "page_table" in paged and "page_table" in gather
    assert "GroupedBlock" in text(96, "paged")  # three panels of 32 columns
    padded = text(80, "paged")  # a box per panel: all columns at once would pass the end of a row
    assert "PagedBlock" in padded and "GroupedBlock" not in padded


def test_gather_producers_wait_for_free_stages_only() -> None:
    source = text(loader="gather", group=3)  # a group whose queries come by cp.async, too
    producers = source[source.index("void produce_items") : source.index("---- consumers")]
    # A copy is waited for once, at the end of each role; it reports to the full barriers itself.
    assert producers.count("cp_async_wait<0>()") == 2 and "cp_async_fence" not in producers
    assert producers.count("_empty[") == 3 and "_full[" in producers
    assert producers.count("arrive_when_copied(smem.") == 3
    # The item record is stored, not copied: one ordinary arrival after it, and one counted for it.
    assert producers.index("smem.item[") < producers.index(".arrive();")
    assert "init_barriers(smem, kCopyThreads + 1, kCopyThreads, kConsumerWarps);" in source


def test_consumers_fence_what_cp_async_wrote() -> None:
    """`wait_full` of a CopiedBarrier fences, and every full barrier is waited for through it."""
    for loader, barrier in (("ragged", "Full"), ("paged", "Full"), ("gather", "Copied")):
        source = text(loader=loader)
        declared = re.findall(r"(\w+)Barrier \w_full\[", source)
        assert declared == [barrier] * 3
        assert not re.search(r"_full\[[^\]]*\]\.wait\(", source)


@pytest.mark.parametrize("loader", ["ragged", "paged", "gather"])
@pytest.mark.parametrize("group", [4, 3])
def test_producers_wait_for_the_launch_before(loader: str, group: int) -> None:
    """With everything but the plan, which nothing that runs on the device writes."""
    kernel = hopper.emit(spec(loader=loader, group=group))
    assert kernel.dependent_launch
    walkers = kernel.text.count("Work work(params.plan, params.num_kv_heads);\n")
    waits = "Work work(params.plan, params.num_kv_heads);\n  wait_for_predecessor();"
    assert kernel.text.count(waits) == walkers == 2
    assert kernel.text.count("let_successor_start();") == 1


@pytest.mark.parametrize("loader", ["ragged", "paged", "gather"])
@pytest.mark.parametrize("group", [1, 4, 8, 64, 128])
def test_queries_of_whole_tokens_come_by_tma(group: int, loader: str) -> None:
    """One thread publishes an item, and nothing is left of the copies row by row."""
    kernel = hopper.emit(spec(loader=loader, group=group))
    source = kernel.text
    assert source.count("if (cute::elect_one_sync()) {\n      publish_item<") == 1
    assert "QueryRows" not in source and "params.q +" not in source
    assert "init_barriers(smem, 1, " in source
    assert "cute::prefetch_tma_descriptor(&params.q_map);" in source
    offsets = kernel.params.offsets
    assert offsets["q_map"] % 128 == 0
    assert not {"q", "q_token_stride", "q_head_stride"} & set(offsets)


@pytest.mark.parametrize("loader", ["ragged", "paged", "gather"])
@pytest.mark.parametrize("group", [3, 5, 6, 7, 12, 256])
def test_queries_of_other_groups_come_row_by_row(group: int, loader: str) -> None:
    kernel = hopper.emit(spec(loader=loader, group=group))
    source = kernel.text
    assert "q_map" not in source and "publish_item" not in source
    assert source.count("Queries::load") == 1
    assert "init_barriers(smem, 1, " not in source
    assert {"q", "q_token_stride", "q_head_stride"} <= set(kernel.params.offsets)


@pytest.mark.parametrize("dims", hopper.head_dims())
@pytest.mark.parametrize("loader", ["ragged", "paged", "gather"])
def test_mma_shapes_and_smem(dims: tuple[int, int], loader: str) -> None:
    s = spec(dims[0], loader, dtype="fp16", head_dim_vo=dims[1])
    kernel = hopper.emit(s)
    operand = "R" if s.tile.q_in_registers else "S"
    assert f"MMA_64x{s.tile.kv}x16_F32F16F16_{operand}S" in kernel.text
    assert f"MMA_64x{dims[1]}x16_F32F16F16_RS" in kernel.text
    assert kernel.smem_bytes <= 232_448
    assert kernel.threads == s.tile.threads


def test_only_unusual_widths_need_the_large_mma_header() -> None:
    switch = "#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED"
    for common in (64, 96, 128):
        assert switch not in text(common)
    assert f"{switch}  // head_dim_vo 80:" in text(80)
    assert f"{switch}  // tile_kv 112:" in text(192)


@pytest.mark.parametrize("variant", VARIANTS, ids=lambda v: v.name)
@pytest.mark.parametrize("loader", ["ragged", "paged", "gather"])
@pytest.mark.parametrize("dims", hopper.head_dims())
def test_a_kernel_is_read_in_one_sitting(
    dims: tuple[int, int], loader: str, variant: Variant
) -> None:
    """Under 400 lines, each role a screen: mechanics belong in the headers."""
    for group in (1, 3, 4):
        lines = text(dims[0], loader, variant, group=group, head_dim_vo=dims[1]).splitlines()
        assert len(lines) < 400
        kv = "produce_kv" if loader == "gather" else "produce_blocks"
        roles = {"produce_items": 25, kv: 65, "begin_tile": 45, "finish_tile": 100, "consume": 30}
        for role, limit in roles.items():
            begin = next(i for i, line in enumerate(lines) if f"CUTE_DEVICE void {role}(" in line)
            indent = lines[begin].partition("CUTE_DEVICE")[0]
            assert lines[begin:].index(indent + "}") < limit, role


@pytest.mark.parametrize("loader", ["ragged", "paged", "gather"])
@pytest.mark.parametrize("dims", hopper.head_dims())
def test_a_kernel_with_hooks_of_rows_is_no_longer(dims: tuple[int, int], loader: str) -> None:
    """But for the variant's own hooks, and 5 lines where the producer is long."""
    variant = causal() & rope()
    for group in (1, 3, 4):
        source = text(dims[0], loader, variant, group=group, head_dim_vo=dims[1])
        without = source.replace(vector_hooks(variant, *dims).text, "")
        assert without != source and len(without.splitlines()) < 400 + 5 * (loader == "gather")


def test_transformers_stand_between_copies_and_consumers() -> None:
    source = text(loader="paged", variant=causal() & rope())
    producers, rest = source.split(
        "// ---------------------------------------------------------------- transformers"
    )
    role, consumers = rest.split(
        "// ---------------------------------------------------------------- consumers"
    )
    assert "smem.k_full" not in producers and "smem.q_full" not in producers
    assert "copied" not in consumers.split("\nextern")[0]
    for ring in ("q", "k"):
        waits, hands = (role.index(f"{x}(smem.{ring}_") for x in ("await_copies", "hand_over"))
        assert waits < role.index(f"smem.{ring}[") < hands
    assert "v_copied" not in source and "smem.v_full, smem.v_empty" in source
    assert "init_barriers(smem, 4, 4, 1, kConsumerWarps);" in source
    assert "init_copied(smem.q_copied, 1, smem.k_copied, 1);" in source
    values = text(variant=Variant("v", value=lambda x, b, h, pos: x * 2))
    assert "smem.v_copied, smem.v_empty" in values and "k_copied" not in values
    assert "Turns<" not in values and "NoTurns()" in values
    assert "transform" not in text(loader="paged", variant=causal())


def test_parameter_struct_matches_the_block() -> None:
    kernel = hopper.emit(spec(loader="paged", variant=causal() & sliding_window() & soft_cap()))
    for name, offset in kernel.params.offsets.items():
        assert f"AT({name}) == {offset}" in kernel.text


def test_unsupported_specs_say_why() -> None:
    good = spec()
    assert hopper.supports(good) == []
    bad = KernelSpec("sm_80", "hopper_tile", "fp8", 72, 72, "ragged", 0, full(), good.tile)
    reasons = "\n".join(hopper.supports(bad))
    known = "(72, 72); known: (64, 64), (80, 80)"
    for word in ("arch is 'sm_80'", "dtype is 'fp8'", known, "group is 0"):
        assert word in reasons
    with pytest.raises(UnsupportedSpecError, match="sm_80"):
        hopper.emit(bad)
