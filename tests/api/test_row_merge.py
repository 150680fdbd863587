"""The host side of `CompositeAttention` on a GPU: what is launched, on which rows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from cute_attn import CompositeAttention, Level, LevelsKV, PagedKV, causal, sliding_window
from cute_attn.abi import ParameterBlock
from cute_attn.api import cuda_batch, plan_store, row_merge
from cute_attn.api.arguments import Arguments
from cute_attn.codegen.kernels import copy_rows_params, merge_rows_params
from cute_attn.variants.looked_up import looked_up

HEADS, KV_HEADS, DIM = 8, 2, 128
BF16 = torch.bfloat16


class Launches:
    """Stands in for a kernel; keeps what it is launched with."""

    def __init__(self, params: ParameterBlock) -> None:
        self.params = params
        self.launches: list[tuple[Any, ...]] = []

    def arguments(self) -> Arguments:
        return Arguments(self.params)

    def launch(self, grid: Any, stream: int, arguments: Arguments, index: int | None) -> None:
        names = [field.name for field in self.params.fields]
        fields = {name: getattr(arguments.fields, name) for name in names}
        self.launches.append((grid, stream, fields))


class RowKernels(NamedTuple):
    """Both kernels of rows."""

    copies: Launches
    merges: Launches


@pytest.fixture
def rows(fake_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> RowKernels:
    made = RowKernels(Launches(copy_rows_params()), Launches(merge_rows_params()))
    stream = SimpleNamespace(cuda_stream=fake_gpu.stream)
    for module, name, value in (
        (row_merge, "PlanBuffer", plan_store.PlanBuffer),
        (row_merge, "StreamOrder", cuda_batch.StreamOrder),
        (row_merge, "device_info", cuda_batch.device_info),
        (row_merge, "_kernels", lambda arch, dtype, dim_qk, dim_vo: made),
        (torch.cuda, "current_stream", lambda device: stream),
    ):
        monkeypatch.setattr(module, name, value)
    return made


def attention(fake_gpu: Any, **options: Any) -> CompositeAttention:
    made = CompositeAttention(HEADS, KV_HEADS, DIM, device="cpu", **options)
    fixed = bool(options.get("cuda_graph"))
    made._plain = fake_gpu.batch(HEADS, KV_HEADS, DIM, cuda_graph=fixed, max_requests=128)
    made._rows = row_merge.RowMerge(
        made._shape, fixed=fixed, max_rows=options.get("max_rows"), on_host=False
    )
    return made


def levels(suffixes: list[int]) -> LevelsKV:
    """A prefix of 64 keys that all share but the first, and keys of each."""
    count = len(suffixes)
    shared = PagedKV([0, 4], [0, 1, 2, 3], [16], 16)
    head = PagedKV([0, 1], [9], [16], 16)
    own = PagedKV(range(count + 1), range(10, 10 + count), suffixes, 16)
    return LevelsKV([Level(shared, range(1, count), [0, count - 1]), Level(head, [0]), Level(own)])


def memory(made: CompositeAttention, at: int) -> np.ndarray:
    """The device's int32 from an address on."""
    buffer = made._rows._buffer
    assert buffer is not None
    return buffer.memory.numpy()[(at - buffer.address) // 4 :]


def test_what_is_launched(fake_gpu: Any, rows: RowKernels) -> None:
    made = attention(fake_gpu).plan([0, 2, 3, 6], levels([5, 16, 9]))
    q = torch.randn(6, 2 * HEADS, DIM, dtype=BF16).view(6, HEADS, 2 * DIM)[..., :DIM]
    out = torch.zeros(6, 2 * HEADS, DIM, dtype=BF16)[:, ::2]
    lse = torch.zeros(6, HEADS)
    made.run(q, torch.zeros(13, 2, 16, KV_HEADS, DIM, dtype=BF16), out=out, lse=lse)
    ((grid, stream, p),) = rows.merges.launches
    stacked = made.stack
    assert stacked is not None and stacked.rows.tolist() == [2, 3, 4, 5, 0, 1, 0, 1, 2, 3, 4, 5]
    ((copied, _, copy),) = rows.copies.launches
    assert (copy["q"], copy["token_stride"], copy["head_stride"]) == (q.data_ptr(), 256, 32)
    assert memory(made, copy["rows"])[:12].tolist() == stacked.rows.tolist()
    assert (copy["row_vectors"], copy["row_blocks"], copied) == (128, 1, (12, 1, 1))
    for launch in fake_gpu.launches:
        assert launch.params["q"] == made._rows.q.data_ptr() == copy["copies"]
        assert launch.params["out"] == made._rows.out.data_ptr() == p["v"]
        assert launch.params["lse"] == made._rows.lse.data_ptr() == p["lse"]
    assert (p["out"], p["out_lse"]) == (out.data_ptr(), lse.data_ptr())
    assert (p["out_token_stride"], p["out_head_stride"]) == (2 * HEADS * DIM, 2 * DIM)
    assert (p["num_rows"], p["num_heads"]) == (6 * HEADS, HEADS)
    assert memory(made, p["state_indptr"])[:7].tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert memory(made, p["states"])[:12].tolist() == [4, 6, 5, 7, 0, 8, 1, 9, 2, 10, 3, 11]
    assert grid == (12, 1, 1) and stream == fake_gpu.stream


def test_addresses_stay_for_graphs(fake_gpu: Any, rows: RowKernels) -> None:
    made = attention(fake_gpu, cuda_graph=True, max_rows=32)
    q, out = (torch.zeros(8, HEADS, DIM, dtype=BF16) for _ in range(2))
    cache = torch.zeros(13, 2, 16, KV_HEADS, DIM, dtype=BF16)
    made.plan([0, 1, 2, 3], levels([5, 16, 9])).run(q, cache, out=out)
    made.plan([0, 1, 2], levels([5, 16])).run(q, cache, out=out)
    first, second = (fields for _, _, fields in rows.merges.launches)
    assert first == second and first["num_rows"] == 8 * HEADS
    assert memory(made, first["state_indptr"])[:10].tolist() == [0, 2, 4, *[-1] * 7]
    assert made._rows.count == 32
    with pytest.raises(ValueError, match="stacked query rows; max_rows is 32"):
        made.plan([0, 20, 40], levels([16, 16]))
    assert made.stack is not None and made.stack.rows.size == 4  # the last step is still there
    with pytest.raises(ValueError, match="q has 33 rows, but there is room for 32"):
        made.run(torch.zeros(33, HEADS, DIM, dtype=BF16), cache)


def test_flat_steps_neither_copy_nor_merge(fake_gpu: Any, rows: RowKernels) -> None:
    kv = PagedKV([0, 4, 8], [0, 1, 2, 3, 0, 1, 2, 4], [16, 16], 16)
    made = attention(fake_gpu).plan([0, 1, 2], kv)
    assert made.levels is None and made.stack is None
    q, out = (torch.zeros(2, HEADS, DIM, dtype=BF16) for _ in range(2))
    made.run(q, torch.zeros(5, 2, 16, KV_HEADS, DIM, dtype=BF16), out=out)
    assert rows.merges.launches == [] and fake_gpu.launches[-1].params["q"] == q.data_ptr()


def test_small_requests_follow_large_ones_where_that_pays(fake_gpu: Any, rows: RowKernels) -> None:
    """64 requests on 4 SMs: a tile of 128 rows for each takes longer than a launch of decodes."""
    count = 64
    shared = PagedKV([0, 64], range(64), [16], 16)
    own = PagedKV(range(count + 1), range(64, 64 + count), [16] * count, 16)
    made = attention(fake_gpu)
    both = LevelsKV([Level(shared, range(count), [0, count]), Level(own)])
    made.plan(range(count + 1), both)
    schedules = [kernel.spec.schedule for kernel in made.attention.kernels]
    assert schedules == ["hopper_tile", "ampere_decode"]
    assert [plan.num_requests for plan in made.attention.plans] == [1, count]
    q = torch.zeros(count, HEADS, DIM, dtype=BF16)
    made.run(q, torch.zeros(128, 2, 16, KV_HEADS, DIM, dtype=BF16))
    assert len(fake_gpu.launches) == 2 and len(rows.merges.launches) == 1


def test_positions_are_looked_up_in_device_memory(fake_gpu: Any, rows: RowKernels) -> None:
    variant = causal() & sliding_window().bake(window_left=20)
    made = attention(fake_gpu, variant=variant)
    made._by_row = fake_gpu.batch(HEADS, KV_HEADS, DIM, variant=looked_up(variant))
    made.plan([0, 2, 3, 6], levels([5, 16, 9]))
    q = torch.zeros(6, HEADS, DIM, dtype=BF16)
    made.run(q, torch.zeros(13, 2, 16, KV_HEADS, DIM, dtype=BF16))
    assert made.stack is not None and not made.stack.follows
    (launch,) = (x for x in fake_gpu.launches if "at_rows" in x.name)
    at = launch.params["row_positions"]
    count = made.stack.rows.size
    assert memory(made, at)[:count].tolist() == made.stack.positions.tolist()
    assert launch.params["row_positions_size_0"] >= count
