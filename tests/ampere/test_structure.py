"""What the generated source contains, and what it must not: only the features of its spec."""

from __future__ import annotations

import re

import pytest

from cute_attn import ampere
from cute_attn.ampere.tiles import row_tiles
from cute_attn.codegen.spec import KernelSpec, Tile, UnsupportedSpecError
from cute_attn.variants import (
    Variant,
    attention_sinks,
    causal,
    full,
    sigmoid_attention,
    sliding_window,
    soft_cap,
)
from tests.ampere.specs import SCHEDULES, even_keys, make_spec, sinks

STEP = {"ampere_tile": "void attend_block(", "ampere_decode": "void attend_keys("}


def text_of(spec: KernelSpec) -> str:
    return ampere.emit(spec).text


def loops(text: str) -> list[str]:
    """kMasked of the main loops, in order."""
    return re.findall(r"attend_(?:block|keys)<(true|false)>\(", text)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_same_spec_same_text(schedule: str) -> None:
    assert text_of(make_spec(schedule)) == text_of(make_spec(schedule))
    assert text_of(make_spec(schedule)) != text_of(make_spec(schedule, group=4))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_loops_are_split_by_the_band(schedule: str) -> None:
    def of(variant):  # type: ignore[no-untyped-def]  # test shorthand
        return loops(text_of(make_spec(schedule, variant=variant)))

    assert of(full()) == ["true", "false"]  # the tail of the request, then no mask at all
    assert of(causal()) == ["true", "false"]
    assert of(causal() & sliding_window()) == ["true", "false"]  # both edges share a copy
    assert of(even_keys()) == ["true"]  # every block asks the mask


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_full_attention_masks_nothing_but_the_tail(schedule: str) -> None:
    text = text_of(make_spec(schedule, variant=full()))
    assert "variant_mask" not in text and "window_" not in text
    assert "key < item.request.kv_len" in text
    assert len(re.findall(r"if \(kMasked\) mask_scores", text)) == text.count("mask_scores(") - 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_band_limits_come_from_the_plan(schedule: str) -> None:
    one_sided = text_of(make_spec(schedule, variant=causal()))
    assert "header.window_right" in one_sided and "header.window_left" not in one_sided
    both = text_of(make_spec(schedule, variant=causal() & sliding_window()))
    assert "header.window_right" in both and "header.window_left" in both


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_only_paged_kernels_know_pages(schedule: str) -> None:
    ragged = text_of(make_spec(schedule, loader="ragged"))
    assert "page_table" not in ragged and "Pages" not in ragged and "divider" not in ragged
    assert "ragged_rows.hpp" in ragged and "paged_rows.hpp" not in ragged
    paged = text_of(make_spec(schedule, loader="paged"))
    assert "pages.load(" in paged and "paged_rows.hpp" in paged
    assert "ragged_rows.hpp" not in paged


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_logits_hook_only_if_the_variant_has_one(schedule: str) -> None:
    assert "variant_logits" not in text_of(make_spec(schedule))
    text = text_of(make_spec(schedule, variant=causal() & soft_cap()))
    assert "fast_tanh(score)" in text and "transform_scores(params" in text
    # The hook comes before the mask, so that a capped -inf cannot come back.
    body = text[text.index(STEP[schedule]) :]
    assert body.index("transform_scores(") < body.index("mask_scores(")
    assert "float logits_soft_cap;" in text


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_weights_in_the_place_of_a_softmax(schedule: str) -> None:
    plain = text_of(make_spec(schedule))
    sigmoid = text_of(make_spec(schedule, variant=causal() & sigmoid_attention(64)))
    softmax = {"ampere_tile": "OnlineSoftmax", "ampere_decode": "KeySoftmax"}[schedule]
    weights = {"ampere_tile": "ScoreWeights", "ampere_decode": "KeyWeights"}[schedule]
    assert weights in sigmoid and softmax not in sigmoid
    assert weights not in plain and softmax in plain
    assert "visible ? score : 0.f;" in sigmoid and "visible ? score : neg_infinity();" in plain
    assert "params.partial_lse[" not in sigmoid and "params.lse[" not in sigmoid
    assert re.search(r"(start|softmax)\(params\.scale_log2\);", sigmoid)
    assert ("MergeSum" in sigmoid) == (schedule == "ampere_decode")


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_hooks_on_rows_act_on_finished_ones(schedule: str) -> None:
    doubled = Variant("doubled", output=lambda out, b, h, q_idx, d: 2 * out)
    plain, sinks, both = (
        text_of(make_spec(schedule, variant=v))
        for v in (full(), attention_sinks(), attention_sinks() & doubled)
    )
    assert "finish_" not in plain and "finished_row.hpp" not in plain
    assert "variant_output" not in sinks and "variant_output" in both
    if schedule == "ampere_tile":
        for text in (sinks, both):
            assert text.count("if (item.slot < 0) finish_rows(params, item, ") == 1
    else:  # of a whole tile, and of its pieces
        assert sinks.count("finish_state<RowHooks>(") == 2
        assert both.count("finish_output<RowHooks>(") == 2


def test_one_buffer_or_a_ring() -> None:
    one = make_spec(tile=Tile(q=64, kv=64, stages=1, threads=128, blocks_per_sm=2))
    assert "kStages" not in text_of(one) and "Element k[kTileKV * kHeadDim];" in text_of(one)
    ring = make_spec(tile=Tile(q=64, kv=64, stages=2, threads=128))
    assert "Element k[kStages][kTileKV * kHeadDim];" in text_of(ring)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_no_block_barrier_in_the_decode_loop(schedule: str) -> None:
    text = text_of(make_spec(schedule, loader="paged"))
    body = text[text.index(STEP[schedule]) :]
    body = body[: body.index("\n}\n")]
    assert ("__syncthreads" in body) == (schedule == "ampere_tile")
    assert ("__syncwarp" in body) == (schedule == "ampere_decode")


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_header_and_constants_say_what_was_asked_for(schedule: str, head_dim: int) -> None:
    spec = make_spec(schedule, head_dim=head_dim, dtype="fp16", group=7, loader="paged")
    kernel = ampere.emit(spec)
    text = kernel.text
    assert text.startswith(f"// {spec.name}\n")
    assert f"shared memory  {kernel.smem_bytes} bytes" in text
    assert f"static_assert(sizeof(Smem) == {kernel.smem_bytes});" in text
    assert "using Element = fp16;" in text
    assert "token r / 7 under query head 7 kv_head + r % 7" in text
    for name, value in {
        "kHeadDim": head_dim, "kTileQ": spec.tile.q, "kTileKV": spec.tile.kv, "kGroup": 7,
        "kThreads": spec.tile.threads,
    }.items():  # fmt: skip
        assert f"constexpr int {name} = {value};" in text
    if schedule == "ampere_tile":
        assert f"constexpr int kRowTiles = {row_tiles(spec.tile)};" in text


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("variant", [full(), causal() & sliding_window(), causal() & soft_cap()])
@pytest.mark.parametrize("loader", ["ragged", "paged"])
def test_text_is_tidy(schedule: str, variant: Variant, loader: str) -> None:
    text = text_of(make_spec(schedule, variant=variant, loader=loader))
    assert max(map(len, text.splitlines())) <= 100 + len(make_spec().name)
    assert "\n\n\n" not in text and "#if" not in text
    assert re.findall(r"#define (\w+)", text) == ["AT"]  # of the parameters' offsets
    assert not re.search(r"[ \t]\n", text)
    assert text.count("__global__") == 1


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_launches_overlap_where_the_hardware_can(schedule: str) -> None:
    kernel = ampere.emit(make_spec(schedule, arch="sm_90"))
    assert kernel.dependent_launch
    start = kernel.text.index("let_successor_start();")
    plan = kernel.text.index("smem.work.start(")
    waits = [m.start() for m in re.finditer(r"wait_for_predecessor\(\);", kernel.text)]
    assert start < plan
    if schedule == "ampere_tile":
        assert plan < waits[0] < kernel.text.index("attend(params, turn, smem);")
    else:  # within the first item, ahead of all reads; a block without items waits at its end
        item = kernel.text.index("CUTE_DEVICE void attend(")
        assert item < waits[0] < kernel.text.index("copy_queries(params, item, queries);")
        assert plan < waits[1] and len(waits) == 2
    for arch in ("sm_80", "sm_86", "sm_89"):
        kernel = ampere.emit(make_spec(schedule, arch=arch))
        assert not kernel.dependent_launch
        assert "successor" not in kernel.text and "dependent_launch" not in kernel.text


def test_decode_waits_before_it_reads_the_page_table() -> None:
    text = text_of(make_spec("ampere_decode", arch="sm_90", loader="paged"))
    assert text.index("wait_for_predecessor();") < text.index("of_keys.load(kv.page_table);")


def test_decode_merges_split_tiles_itself() -> None:
    text = text_of(make_spec("ampere_decode", arch="sm_90"))
    assert "merge_pieces(params, item, smem.pieces);" in text
    assert "arrive_piece" not in text_of(make_spec("ampere_tile", arch="sm_90"))


def test_fixed_pieces_are_walked_by_a_walker_of_their_own() -> None:
    fixed = make_spec("ampere_decode", loader="paged", group=4, fixed_pieces=True)
    plain = make_spec("ampere_decode", loader="paged", group=4)
    text, plain_text = (ampere.emit(spec).text for spec in (fixed, plain))
    assert "PieceWalker" in text and "arrive_at(item, params.arrivals)" in text
    assert "Piece" not in plain_text.replace("PieceSlots", "")
    assert fixed.name != plain.name and fixed.digest == plain.digest


def test_only_decode_cuts_tiles_itself() -> None:
    spec = make_spec("ampere_tile", fixed_pieces=True)
    with pytest.raises(UnsupportedSpecError, match="'ampere_tile' does not cut tiles itself"):
        ampere.emit(spec)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("loader", ["ragged", "paged"])
@pytest.mark.parametrize("stages", [1, 2, 3])
def test_blocks_that_the_mask_empties_are_skipped(schedule: str, loader: str, stages: int) -> None:
    if schedule == "ampere_decode" and stages == 1:
        return
    tile = Tile(q=16, kv=64, stages=stages, threads=128)
    if schedule == "ampere_tile":
        tile = Tile(q=64, kv=32, stages=stages, threads=128)
    text = text_of(make_spec(schedule, loader=loader, variant=sinks(), tile=tile))
    assert re.findall(r"attend_(?:block|keys)<(true|false)>\(", text) == ["false", "true"]
    assert "for (; blocks.any(); blocks.advance())" in text
    ahead = max(stages - (loader == "ragged"), 1)
    assert re.search(rf"using Blocks = BlocksAhead<[^;]*, {ahead}>;", text)
    # Where the next keys are is asked of the walk alone.
    assert "n - 1" not in text and "block - 1" not in text and "n - i" not in text
    uses = re.findall(r"item\.block_begin", text)
    assert len(uses) == 1  # the end of the walk
    assert "n % kStages" not in text and "ahead % kStages" not in text


def test_a_walk_may_read_what_the_launch_before_wrote() -> None:
    text = text_of(make_spec("ampere_decode", arch="sm_90", variant=sinks()))
    assert text.index("wait_for_predecessor();") < text.index("Blocks blocks(")
    assert text.count("wait_for_predecessor();") == 2
