"""The host side of the CUDA back end: what is launched with which arguments, what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import (
    BlockTableKV,
    PagedKV,
    RaggedKV,
    Variant,
    causal,
    document_mask,
    sliding_window,
    soft_cap,
)
from cute_attn.abi import PlanLayout
from cute_attn.api.tensor_maps import kv_map
from cute_attn.scheduler import ARRIVALS_BYTES
from cute_attn.variants import Tensor

BF16 = torch.bfloat16


def zeros(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=BF16)


def decode(requests: int, pages: int = 2, page_size: int = 16) -> tuple[list[int], PagedKV]:
    """One query per request, `pages` full pages each."""
    kv_indptr = [pages * i for i in range(requests + 1)]
    indices = list(range(pages * requests))
    return list(range(requests + 1)), PagedKV(kv_indptr, indices, [page_size] * requests, page_size)


def test_arguments_of_a_paged_decode(fake_gpu: Any) -> None:
    """Strides of a fused QKV slice, of an HND cache in one tensor, page division, scale."""
    batch = fake_gpu.batch(8, 2, 128, kv_layout="HND", sm_scale=0.5)
    batch.plan(*decode(3))
    q = zeros(3, 8 + 4, 128)[:, :8]
    cache = zeros(6, 2, 2, 16, 128)
    out = batch.run(q, cache)
    (launch, *merges) = fake_gpu.launches
    assert launch.name.startswith("ampere_decode_bf16_d128_paged_g4_causal_sm_90")
    # The fake GPU has 4 SMs; the tile table says how many blocks an SM holds.
    assert launch.grid == batch.last_plan.layout.num_blocks and launch.grid % 4 == 0
    assert merges == [] and launch.stream == 7
    p = launch.params
    assert (p["q"], p["out"], p["lse"]) == (q.data_ptr(), out.data_ptr(), 0)
    assert (p["q_token_stride"], p["q_head_stride"]) == (12 * 128, 128)
    assert (p["out_token_stride"], p["out_head_stride"]) == (8 * 128, 128)
    assert p["k"] == cache.data_ptr() and p["v"] == cache.data_ptr() + 2 * 2 * 16 * 128
    assert (p["k_page_stride"], p["k_token_stride"], p["k_head_stride"]) == (8192, 128, 2048)
    assert (p["page_size"], p["page_magic"], p["page_shift"]) == (16, 0, 4)
    assert (p["num_pages"], p["num_kv_heads"]) == (6, 2)
    assert p["sm_scale"] == 0.5 and p["scale_log2"] == pytest.approx(0.5 * math.log2(math.e))


def test_plan_and_page_table_are_uploaded_in_one_copy(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan(*decode(3))
    assert fake_gpu.uploads == 1
    batch.run(zeros(3, 8, 128), zeros(6, 2, 16, 2, 128))
    params = fake_gpu.launches[0].params
    memory = batch._backend.launches[0].store._buffer.memory.numpy()
    at = (params["plan"] - memory.ctypes.data) // 4
    plan = batch.last_plan
    np.testing.assert_array_equal(memory[at : at + plan.buffer.size], plan.buffer)
    at = (params["page_table"] - memory.ctypes.data) // 4
    assert at >= PlanLayout(plan.layout.num_blocks, 3).size
    np.testing.assert_array_equal(memory[at : at + 6], range(6))


def test_prefill_takes_the_tile_kernel_and_tensor_maps(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan([0, 100], RaggedKV([0, 300]))
    k, v = zeros(300, 2, 128), zeros(300, 2, 128)
    batch.run(zeros(100, 8, 128), k, v)
    launch = fake_gpu.launches[0]
    assert launch.name.startswith("hopper_tile_bf16_d128_ragged_g4_causal_sm_90a")
    assert launch.params["k_map"][:8] == k.data_ptr().to_bytes(8, "little")
    assert launch.params["v_map"][:8] == v.data_ptr().to_bytes(8, "little")


def test_values_of_another_width_than_keys(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 192, head_dim_vo=128)
    batch.plan([0, 1, 2], PagedKV([0, 2, 3], range(3), [1, 16], 16))  # decodes, too
    k, v = zeros(3, 16, 2, 192), zeros(3, 16, 2, 128)
    q = zeros(2, 8, 192)
    assert batch.run(q, (k, v)).shape == (2, 8, 128)
    launch = fake_gpu.launches[0]
    assert launch.name.startswith("hopper_tile_bf16_d192x128_paged_g4_")
    assert launch.params["q_map"][:8] == q.data_ptr().to_bytes(8, "little")
    assert launch.params["out_token_stride"] == 8 * 128
    assert launch.params["v_map"][:8] == v.data_ptr().to_bytes(8, "little")
    with pytest.raises(ValueError, match="v has head_dim 192; planned for 128"):
        batch.run(zeros(2, 8, 192), (k, k))


@pytest.mark.parametrize("dim", [64, 80, 112, 192])
def test_boxes_are_whole_panels_of_a_map_of_the_true_width(dim: int) -> None:
    """So that TMA fills the rest of the last panel with zeros, which the barrier counts."""
    wide = zeros(3, 16, 2, dim + 8)
    spec = kv_map(wide[..., :dim], 16)
    panel = 32 if dim == 80 else 64
    assert spec.dims == (dim, 16, 2, 3) and spec.box == (panel, 16, 1, 1)
    assert spec.box_bytes == 16 * 2 * panel and spec.strides_bytes[0] == 2 * 2 * (dim + 8)


@pytest.mark.parametrize(("page_size", "loader"), [(16, "paged"), (48, "paged"), (17, "gather")])
def test_loader_follows_the_page_size(fake_gpu: Any, page_size: int, loader: str) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan([0, 100], PagedKV([0, 10], range(10), [page_size], page_size))
    batch.run(zeros(100, 8, 128), zeros(10, 2, page_size, 2, 128))
    launch = fake_gpu.launches[0]
    assert launch.name.startswith(f"hopper_tile_bf16_d128_{loader}_")
    if loader == "paged":
        assert launch.params["box_rows"] == 16  # divides a page and the tile's 128 keys
        assert launch.params["k_page_groups"] == 2 * page_size // 8  # K and V in one tensor


def test_merge_follows_a_split_plan(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(4, 1, 128, schedule="ampere_tile")
    batch.plan([0, 20], RaggedKV([0, 8000]))
    assert batch.last_plan.num_split_tiles > 0
    q, k, out, lse = zeros(20, 4, 128), zeros(8000, 1, 128), zeros(20, 4, 128), torch.zeros(20, 4)
    batch.run(q, k, k, out=out, lse=lse)
    attention, merge = fake_gpu.launches
    assert merge.name.startswith("merge_bf16_d128_q128_g4") and merge.grid[0] == attention.grid
    for name in ("out", "lse", "plan", "partial_out", "partial_lse", "out_token_stride"):
        assert merge.params[name] == attention.params[name], name
    slots = batch.last_plan.num_slots
    room = attention.params["partial_lse"] - attention.params["partial_out"]
    assert room >= slots * 128 * 128 * 4


def test_decode_merges_in_its_own_kernel(fake_gpu: Any) -> None:
    """It counts arrivals at the begin of the workspace, which plan() sets to zero once."""
    size = fake_gpu.batch(4, 1, 128).workspace_size()
    raw = torch.full((size + 128,), 0xFF, dtype=torch.uint8)
    workspace = raw[-raw.data_ptr() % 128 :][:size]
    batch = fake_gpu.batch(4, 1, 128, workspace=workspace)
    batch.plan([0, 1], RaggedKV([0, 8000]))
    assert batch.last_plan.num_split_tiles > 0
    batch.run(zeros(1, 4, 128), zeros(8000, 1, 128), zeros(8000, 1, 128))
    (launch,) = fake_gpu.launches
    assert launch.params["arrivals"] == workspace.data_ptr()
    counters = workspace.view(torch.int32)[: batch.last_plan.num_slots]
    assert counters.count_nonzero() == 0
    counters += 1  # as if a launch had left them so: planning again must not touch them
    batch.plan([0, 1], RaggedKV([0, 7000]))
    assert bool((counters == 1).all())


def test_layers_keep_their_argument_blocks(fake_gpu: Any) -> None:
    """After the first pass a run neither checks nor encodes again, also when planned anew."""
    batch = fake_gpu.batch(8, 2, 128)
    caches = [zeros(8, 2, 16, 2, 128) for _ in range(3)]
    q = zeros(4, 8, 128)
    bindings = batch.plan(*decode(4))._backend.launches[0].layers.kernels.bindings
    for _ in range(2):
        for cache in caches:
            batch.run(q, cache)
    assert len(bindings) == 3
    filled = [b.paging for b in bindings.values()]
    batch.plan(*decode(4))
    batch.run(q, caches[0])
    assert batch._backend.launches[0].layers._paging is filled[0]
    assert [launch.params["k"] for launch in fake_gpu.launches] == [
        c.data_ptr() for c in [*caches, *caches, caches[0]]
    ]


@pytest.mark.parametrize("one_tensor", [False, True])
@pytest.mark.parametrize("rows", [1, 100])
def test_a_moved_cache_gets_the_same_block_but_for_addresses(
    fake_gpu: Any, rows: int, one_tensor: bool
) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan([0, rows], PagedKV([0, 7], range(7), [16], 16))
    q, caches = zeros(rows, 8, 128), [zeros(9, 2, 16, 2, 128) for _ in range(2)]
    kinds = ("k_map", "v_map") if rows > 16 else ("k", "v")
    for cache in caches:
        batch.run(q, *([cache] if one_tensor else cache.unbind(1)), out=torch.zeros_like(q))
    first, second = (dict(launch.params) for launch in fake_gpu.launches[-2:])
    for cache, params in zip(caches, (first, second), strict=True):
        for name, part in zip(kinds, cache.unbind(1), strict=True):
            value = params.pop(name)
            address = value if isinstance(value, int) else int.from_bytes(value[:8], "little")
            assert address == part.data_ptr()
            if rows > 16:
                params[name] = value[8:]
    first["out"] = second["out"]
    assert first == second


def test_the_same_address_with_another_shape_is_checked_again(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan(*decode(2))
    cache = zeros(8, 2, 16, 2, 128)
    batch.run(zeros(2, 8, 128), cache)
    with pytest.raises(ValueError, match="pages of 8 keys but page_size is 16"):
        batch.run(zeros(2, 8, 128), cache.view(16, 2, 8, 2, 128))
    with pytest.raises(ValueError, match="page 3 but the cache has 3 pages"):
        batch.run(zeros(2, 8, 128), cache[:3])
    assert len(fake_gpu.launches) == 1


def test_scalars_reach_the_block_and_revert(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, variant="soft_cap")
    batch.plan([0, 1], RaggedKV([0, 10]), scalars={"logits_soft_cap": 20.0})
    q, k = zeros(1, 8, 128), zeros(10, 2, 128)
    for scalars, expected in ((None, 20.0), ({"logits_soft_cap": 5.0}, 5.0), (None, 20.0)):
        batch.run(q, k, k, scalars=scalars)
        assert fake_gpu.launches[-1].params["logits_soft_cap"] == expected
        # cap tanh(score / cap): both factors are those that scores are multiplied with anyway.
        block = fake_gpu.launches[-1].params
        assert block["sm_scale"] == pytest.approx(128**-0.5 / expected)
        assert block["scale_log2"] == pytest.approx(math.log2(math.e) * expected)


def with_bias() -> Variant:
    def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, *, bias: Any) -> Any:
        return score + bias[h, (q_idx - kv_idx) % 16]

    return Variant("biased", logits=biased, params=[Tensor("bias", "f32", 2)])


def test_tensors_reach_the_block(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, variant=with_bias())
    first, second = torch.zeros(8, 20)[:, :16], torch.ones(9, 16)
    batch.plan([0, 1], RaggedKV([0, 10]), tensors={"bias": first})
    q, k = zeros(1, 8, 128), zeros(10, 2, 128)
    for given, tensor in ((None, first), ({"bias": second}, second), (None, first)):
        batch.run(q, k, k, tensors=given)
        params = fake_gpu.launches[-1].params
        assert params["bias"] == tensor.data_ptr()
        assert params["bias_stride_0"] == tensor.stride(0)
        assert (params["bias_size_0"], params["bias_size_1"]) == tuple(tensor.shape)
    with pytest.raises(IndexError, match="index 1 is between 0 and 9"):
        batch.run(q, k, k, tensors={"bias": first[:, :8]})
    assert len(fake_gpu.launches) == 3


def test_factors_in_tensors_are_no_scales(fake_gpu: Any) -> None:
    variant = Variant(
        "tempered", logits=lambda s, b, h, i, j, *, t: s * t[0], params=[Tensor("t", "f32", 1)]
    )
    batch = fake_gpu.batch(8, 2, 128, variant=variant)
    batch.plan([0, 1], RaggedKV([0, 10]), tensors={"t": torch.tensor([0.5])})
    batch.run(zeros(1, 8, 128), *[zeros(10, 2, 128)] * 2)
    params = fake_gpu.launches[-1].params
    assert params["sm_scale"] == pytest.approx(128**-0.5)
    assert params["scale_log2"] == pytest.approx(math.log2(math.e))


def test_captured_graphs_keep_their_tensors(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, cuda_graph=True, max_requests=8, variant=with_bias())
    bias, q, k = torch.zeros(8, 16), zeros(1, 8, 128), zeros(10, 2, 128)
    batch.plan([0, 1], RaggedKV([0, 10]), tensors={"bias": bias})
    fake_gpu.capturing = True
    batch.run(q, k, k)
    fake_gpu.capturing = False
    batch.plan([0, 1], RaggedKV([0, 9]), tensors={"bias": bias})
    with pytest.raises(ValueError, match=r"tensor 'bias' is another one than a captured graph"):
        batch.plan([0, 1], RaggedKV([0, 10]), tensors={"bias": torch.zeros(8, 16)})


def live_values(batch: Any, params: dict[str, Any], *names: str) -> list[int]:
    """What is in memory where the kernel reads live i32 scalars."""
    memory = batch._backend._live._buffer.memory
    return [int(memory[(params[name] - memory.data_ptr()) // 4]) for name in names]


def test_captured_graphs_see_live_scalars(fake_gpu: Any) -> None:
    """In memory at one place, which each plan fills; no factor of them is in the block."""
    variant = (causal() & sliding_window() & soft_cap()).live()
    batch = fake_gpu.batch(8, 2, 128, cuda_graph=True, max_requests=8, variant=variant)
    q, k = zeros(1, 8, 128), zeros(10, 2, 128)
    batch.plan([0, 1], RaggedKV([0, 10]), scalars={"window_left": 5, "logits_soft_cap": 20.0})
    fake_gpu.capturing = True
    batch.run(q, k, k)
    fake_gpu.capturing = False
    first = fake_gpu.launches[-1].params
    assert live_values(batch, first, "window_left") == [5]
    uploads = fake_gpu.uploads
    batch.plan([0, 1], RaggedKV([0, 9]), scalars={"window_left": 3, "logits_soft_cap": 1.5})
    assert fake_gpu.uploads == uploads + 2
    assert live_values(batch, first, "window_left") == [3]
    cap = batch._backend._live._buffer.memory.view(torch.float32)[1]
    assert cap == 1.5 and first["logits_soft_cap"] == first["window_left"] + 4
    assert first["sm_scale"] == pytest.approx(128**-0.5)
    batch.run(q, k, k)
    second = fake_gpu.launches[-1].params
    assert second["window_left"] == first["window_left"]
    uploads = fake_gpu.uploads
    batch.plan([0, 1], RaggedKV([0, 9]), scalars={"window_left": 3, "logits_soft_cap": 1.5})
    assert fake_gpu.uploads == uploads + 1  # nothing has changed
    with pytest.raises(ValueError, match=r"'logits_soft_cap' is live: .*which is 1.5; give 2.0"):
        batch.run(q, k, k, scalars={"logits_soft_cap": 2.0})


def test_captured_graphs_refuse_other_scalars(fake_gpu: Any) -> None:
    variant = causal() & sliding_window() & soft_cap().live()
    batch = fake_gpu.batch(8, 2, 128, cuda_graph=True, max_requests=8, variant=variant)
    step = [0, 1], RaggedKV([0, 10])
    batch.plan(*step, scalars={"window_left": 5})
    batch.plan(*step, scalars={"window_left": 6})  # nothing is captured
    fake_gpu.capturing = True
    batch.run(zeros(1, 8, 128), *[zeros(10, 2, 128)] * 2)
    fake_gpu.capturing = False
    batch.plan(*step, scalars={"window_left": 6, "logits_soft_cap": 2.0})
    with pytest.raises(ValueError, match=r"'window_left' is 5, but a captured graph keeps 6"):
        batch.plan(*step, scalars={"window_left": 5})


def test_ranges_of_tensors_are_made_before_the_attention(fake_gpu: Any) -> None:
    """In each run, at a place that attention reads."""
    rows = [0, 300]
    batch = fake_gpu.batch(8, 2, 128, variant=causal() & document_mask(), cuda_graph=True)
    first, second = (torch.zeros(2, n, dtype=torch.int32) for n in (300, 900))
    batch.plan(rows, RaggedKV(rows), tensors={"document": first})
    q, k = zeros(rows[-1], 8, 128), zeros(rows[-1], 2, 128)
    places = {}
    for given, tensor in ((None, first), ({"document": second}, second), (None, first)):
        fake_gpu.launches.clear()
        batch.run(q, k, k, tensors=given)
        ranges, attention = fake_gpu.launches
        assert ranges.name.startswith("ranges_document_sm_90_")
        assert ranges.grid == (2, -(-tensor.shape[1] // (128 * 32)), 1)
        assert ranges.params["document"] == tensor.data_ptr()
        assert ranges.params["document_size_1"] == tensor.shape[1]
        place = ranges.params["document_ranges"]
        assert attention.params["document_ranges"] == place
        assert places.setdefault(tensor.data_ptr(), place) == place
    # The larger one has moved; a captured graph would still hold the first place.
    assert len(set(places.values())) == 2
    batch.plan(rows, RaggedKV(rows), tensors={"document": first})
    batch.run(q, k, k)
    assert fake_gpu.launches[-1].params["document_ranges"] == places[second.data_ptr()]


def test_graph_mode_keeps_kernel_and_addresses(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, cuda_graph=True, max_requests=8, max_pages=64)
    batch.plan(*decode(4))
    q, cache = zeros(6, 8, 128), zeros(20, 2, 16, 2, 128)
    fake_gpu.capturing = True
    batch.run(q, cache)
    with pytest.raises(RuntimeError, match="during CUDA graph capture"):
        batch.plan(*decode(4))
    fake_gpu.capturing = False
    assert len(fake_gpu.launches) == 1
    before = fake_gpu.launches[0]
    # A prefill keeps the captured kernel.
    batch.plan([0, 5], PagedKV([0, 2], [3, 1], [7], 16))
    batch.run(q, cache)
    after = fake_gpu.launches[1]
    assert (after.name, after.grid) == (before.name, before.grid)
    for name in ("plan", "page_table", "partial_out", "partial_lse"):
        assert after.params[name] == before.params[name], name


def test_graph_mode_keeps_the_tile_whatever_the_lengths(fake_gpu: Any) -> None:
    """Else the first step's lengths would say which steps a graph can take."""
    long, short = ([0, 400], RaggedKV([0, 4000])), ([0, 400], RaggedKV([0, 500]))
    for first, second in ((long, short), (short, long)):
        batch = fake_gpu.batch(4, 2, 64, cuda_graph=True, max_requests=8)
        spec = batch.plan(*first).kernels[0].spec
        assert spec == batch.plan(*second).kernels[0].spec
    free = fake_gpu.batch(4, 2, 64)
    tiles = [free.plan(*step).kernels[0].spec.tile.q for step in (long, short)]
    assert tiles == [192, 128]


def test_graph_mode_refuses_what_a_captured_graph_cannot_hold(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, cuda_graph=True, max_requests=8, max_pages=64)
    batch.plan(*decode(4))
    fake_gpu.capturing = True
    batch.run(zeros(4, 8, 128), zeros(8, 2, 16, 2, 128))
    fake_gpu.capturing = False
    for step, message in (
        (decode(5), r"qo_indptr\[-1\] is 5, but q had 4 rows"),
        (([0, 1], PagedKV([0, 1], [8], [1], 16)), "page 8 but the cache has 8 pages"),
        (([0, 1], PagedKV([0, 1], [0], [1], 8)), "pages of 8 tokens.*had pages of 16"),
        (([0, 1], RaggedKV([0, 1])), "ragged KV.*had pages of 16"),
        ((list(range(10)), decode(9)[1]), "9 requests; max_requests is 8|9 rows|is 9, but q had"),
        (([0, 1], BlockTableKV([[0] * 65], [65 * 16], 16)), "65 entries; max_pages is 64"),
    ):
        with pytest.raises(ValueError, match=message):
            batch.plan(*step)


def test_graph_mode_without_capacities_does_not_move_the_plan(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, cuda_graph=True)
    batch.plan(*decode(2))
    with pytest.raises(ValueError, match="give max_requests and max_pages"):
        batch.plan(*decode(200))


def test_workspace_of_the_caller(fake_gpu: Any) -> None:
    size = fake_gpu.batch(8, 2, 128).workspace_size()
    # Arrivals, then slots * tile_q * (dim + lse) of decode and of prefill.
    decode = 2 * 11 * 16 * 128 * 4 + 1536  # lse in whole 256 bytes
    assert size == ARRIVALS_BYTES + decode + 2 * 3 * 128 * (128 + 1) * 4
    alone = fake_gpu.batch(8, 2, 128, schedule="hopper_tile").workspace_size()
    assert alone == ARRIVALS_BYTES + 2 * 3 * 128 * (128 + 1) * 4
    raw = torch.zeros(size + 128, dtype=torch.uint8)
    aligned = raw[-raw.data_ptr() % 128 :][:size]
    batch = fake_gpu.batch(8, 2, 128, workspace=aligned)
    batch.plan([0, 100], RaggedKV([0, 300]))
    batch.run(zeros(100, 8, 128), zeros(300, 2, 128), zeros(300, 2, 128))
    assert fake_gpu.launches[0].params["partial_out"] == aligned.data_ptr() + ARRIVALS_BYTES
    small = fake_gpu.batch(8, 2, 128, workspace=aligned[:1000])
    with pytest.raises(ValueError, match=rf"workspace has 1000 bytes.*needs {alone}"):
        small.plan([0, 100], RaggedKV([0, 300]))


def test_unsupported_sizes_say_why(fake_gpu: Any) -> None:
    from cute_attn import UnsupportedSpecError

    with pytest.raises(UnsupportedSpecError, match=r"head_dim.*48.*64, 128, 256"):
        fake_gpu.batch(8, 2, 48).plan([0, 1], RaggedKV([0, 1]))


def test_empty_batch_and_empty_kv(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128)
    batch.plan([0], RaggedKV([0]))
    empty = zeros(0, 2, 128)
    assert batch.run(zeros(0, 8, 128), empty, empty).shape == (0, 8, 128)
    batch.plan([0, 40], RaggedKV([0, 0]))
    batch.run(zeros(40, 8, 128), empty, empty)
    assert fake_gpu.launches[-1].name.startswith("hopper_tile")
