"""`plan_on_device`: what is launched, what is refused, and the same calls on CPU tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import (
    BatchAttention,
    DeviceKV,
    PagedKV,
    RaggedKV,
    attention_sinks,
    causal,
    sigmoid_attention,
    sliding_window,
    soft_cap,
)
from cute_attn.abi import UNBOUNDED, PlanLayout
from cute_attn.scheduler import CostModel, DecodeCosts, Geometry

BF16 = torch.bfloat16
PAGE = 16
NAME = "plan_decode_t512_sm_90"


def ints(*values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def zeros(*size: int) -> torch.Tensor:
    return torch.zeros(*size, dtype=BF16)


def paged(lengths: list[int], entries: int | None = None) -> tuple[PagedKV, DeviceKV]:
    """The same KV for plan() and for plan_on_device()."""
    pages = [-(-n // PAGE) for n in lengths]
    indptr = [0, *np.cumsum(pages).tolist()]
    last = [n - max(p - 1, 0) * PAGE for n, p in zip(lengths, pages, strict=True)]
    table = torch.arange(entries or indptr[-1], dtype=torch.int32)
    host = PagedKV(indptr, table, last, PAGE)
    return host, DeviceKV.from_paged(ints(*indptr), table, ints(*last), PAGE)


def planned(make: Any, lengths: list[int], **options: Any) -> tuple[BatchAttention, DeviceKV]:
    """A batch for capacities of 8 requests and 64 pages, planned once from the host."""
    options = {"cuda_graph": True, "max_requests": 8, "max_pages": 64, **options}
    host, device = paged(lengths)
    batch = make(8, 2, 128, **options)
    return batch.plan(range(len(lengths) + 1), host), device


def test_hooks_on_rows(fake_gpu: Any) -> None:
    """The same kernel with the same parameters follows either planner; nobody looks at indices."""
    sink, other = torch.zeros(8), torch.ones(3)
    variant = causal() & attention_sinks()
    batch, kv = planned(fake_gpu.batch, [20, 0, 33], variant=variant)
    rows = zeros(3, 8, 128), zeros(6, 2, PAGE, 2, 128)
    batch.run(*rows, tensors={"sink": sink})
    fake_gpu.launches.clear()
    batch.plan_on_device(kv, tensors={"sink": other})
    batch.run(*rows)
    assert fake_gpu.launches[1].params["sink"] == other.data_ptr()
    assert fake_gpu.launches[1].params["sink_size_0"] == 3
    batch, kv = planned(fake_gpu.batch, [20, 0, 33], variant=sigmoid_attention(32))
    batch.plan_on_device(kv)
    with pytest.raises(ValueError, match="variant 'sigmoid' has no softmax"):
        batch.run(*rows, return_lse=True)
    batch.run(*rows)
    assert fake_gpu.launches[-1].params["sigmoid_bias"] == pytest.approx(-np.log(32))


def test_the_planner_and_what_follows_it(fake_gpu: Any) -> None:
    """One block with the costs of the kernel; the next launch waits, those behind it overlap."""
    batch, kv = planned(fake_gpu.batch, [20, 0, 33])
    batch.run(zeros(3, 8, 128), zeros(6, 2, PAGE, 2, 128))
    plan_address, captured = fake_gpu.launches[0].params["plan"], fake_gpu.launches[0]
    fake_gpu.launches.clear()
    uploads = fake_gpu.uploads
    batch.plan_on_device(kv, q_len=2)  # two tokens of four heads: all rows of the tile
    for _ in range(3):
        batch.run(zeros(6, 8, 128), zeros(6, 2, PAGE, 2, 128))
    planner, *runs = fake_gpu.launches
    assert fake_gpu.uploads == uploads, "something was copied"
    assert planner.name.startswith(NAME) and planner.grid == 1
    assert [run.overlap for run in runs] == [False, True, True]
    assert all(run.name == captured.name and run.grid == captured.grid for run in runs)
    assert {run.params["plan"] for run in runs} == {plan_address} == {planner.params["plan"]}
    assert {run.params["page_table"] for run in runs} == {kv.page_table.data_ptr()}
    assert captured.params["page_table"] not in (0, kv.page_table.data_ptr())

    (kernel,) = batch.kernels
    assert kernel.spec is not None
    tile = kernel.spec.tile
    geometry = Geometry(tile.q, tile.kv, group=4, num_kv_heads=2, window_right=0)
    cost = CostModel.for_kernel(schedule="ampere_decode", blocks_per_sm=tile.blocks_per_sm)
    own = {
        **vars(DecodeCosts.of(geometry, cost, 2)),
        **{name: size for name, size in vars(geometry).items() if name != "heads_in_ids"},
        "kv_indptr": kv.kv_indptr.data_ptr(),
        "kv_last_page_len": kv.kv_last_page_len.data_ptr(),
        "seq_lens": 0,
        "num_requests": 3,
        "q_len": 2,
        "page_size": PAGE,
        "capacity": kv.page_table.numel(),
        "num_blocks": captured.grid,
    }
    assert {name: planner.params[name] for name in own} == own


def test_formats_and_scalars(fake_gpu: Any) -> None:
    batch = fake_gpu.batch(8, 2, 128, cuda_graph=True, variant="sliding_window")
    batch.plan([0, 1], RaggedKV([0, 40]), scalars={"window_left": 7})
    batch.plan_on_device(DeviceKV.from_ragged(ints(0, 9, 40), 100), scalars={"window_left": 30})
    planner = fake_gpu.launches[-1].params
    assert (planner["window_left"], planner["window_right"]) == (30, UNBOUNDED)
    assert (planner["capacity"], planner["kv_last_page_len"]) == (100, 0)
    with pytest.raises(ValueError, match=r"k has 99 rows.*100"):
        batch.run(zeros(2, 8, 128), zeros(99, 2, 128), zeros(99, 2, 128))
    batch.run(zeros(2, 8, 128), zeros(100, 2, 128), zeros(100, 2, 128))
    assert fake_gpu.launches[-1].params["window_left"] == 30

    table = torch.zeros(3, 12, dtype=torch.int32)[:, :5]
    batch, _ = planned(fake_gpu.batch, [20])
    batch.plan_on_device(DeviceKV.from_block_table(table, ints(3, 0, 80), PAGE))
    planner = fake_gpu.launches[-1].params
    assert planner["kv_indptr"] == planner["kv_last_page_len"] == 0 != planner["seq_lens"]
    assert (planner["table_stride"], planner["capacity"], planner["num_requests"]) == (12, 80, 3)
    assert batch.last_plan is None and batch.plans == () and len(batch.kernels) == 1
    with pytest.raises(RuntimeError, match="only the device knows the plan"):
        batch.explain()


def test_capture(fake_gpu: Any) -> None:
    """The first call makes memory; later ones are captured, and a plan from the host is refused
    where a captured run has another page table."""
    batch, kv = planned(fake_gpu.batch, [20, 30])
    fake_gpu.capturing = True
    with pytest.raises(RuntimeError, match="call it once before the capture"):
        batch.plan_on_device(kv)
    fake_gpu.capturing = False
    batch.plan_on_device(kv)
    host, _ = paged([20, 30])
    batch.plan([0, 1, 2], host)
    fake_gpu.capturing = True
    batch.plan_on_device(kv)
    batch.run(zeros(2, 8, 128), zeros(4, 2, PAGE, 2, 128))
    assert not fake_gpu.launches[-1].overlap
    fake_gpu.capturing = False
    batch.plan([0, 1, 2], host)  # the graph plans for itself
    batch.plan_on_device(kv)
    fake_gpu.capturing = True
    batch.run(zeros(2, 8, 128), zeros(4, 2, PAGE, 2, 128))  # alone in its graph
    fake_gpu.capturing = False
    batch.plan_on_device(kv)
    with pytest.raises(ValueError, match="another page table than the captured graph"):
        batch.plan([0, 1, 2], host)
    with pytest.raises(ValueError, match="another page table than the captured graph"):
        batch.plan_on_device(paged([20, 30])[1])


def test_live_scalars_under_capture(fake_gpu: Any) -> None:
    """A captured plan copies nothing and keeps its band; values may change where keys do not."""
    variant = (causal() & sliding_window() & soft_cap()).live()
    batch, kv = planned(fake_gpu.batch, [20, 30], variant=variant)
    first = {"window_left": 8, "logits_soft_cap": 3.0}
    batch.plan_on_device(kv, scalars=first)
    fake_gpu.capturing = True
    with pytest.raises(ValueError, match=r"'logits_soft_cap' is 4.0, but the last plan has left 3"):
        batch.plan_on_device(kv, scalars={**first, "logits_soft_cap": 4.0})
    batch.plan_on_device(kv, scalars=first)
    batch.run(zeros(2, 8, 128), zeros(4, 2, PAGE, 2, 128))
    fake_gpu.capturing = False
    params = fake_gpu.launches[-1].params
    batch.plan_on_device(kv, scalars={**first, "logits_soft_cap": 5.0})
    memory = batch._backend._live._buffer.memory
    at = (params["logits_soft_cap"] - memory.data_ptr()) // 4
    assert memory.view(torch.float32)[at] == 5.0
    wider, host = {**first, "window_left": 9}, paged([20, 30])[0]
    with pytest.raises(ValueError, match=r"the band is \(9, 0\), but a captured .* \(8, 0\)"):
        batch.plan_on_device(kv, scalars=wider)
    with pytest.raises(ValueError, match=r"the band is \(9, 0\), but a captured .* \(8, 0\)"):
        batch.plan([0, 1, 2], host, scalars=wider)


def test_runs_elsewhere_do_not_end_the_wait(fake_gpu: Any) -> None:
    """Only a launch on the planner's own stream is known to lie between it and the next one."""
    batch, kv = planned(fake_gpu.batch, [20])
    batch.plan_on_device(kv)
    own = fake_gpu.stream
    for stream, overlap in ((own + 1, False), (own, False), (own + 1, True), (own, True)):
        fake_gpu.stream = stream
        batch.run(zeros(1, 8, 128), zeros(2, 2, PAGE, 2, 128))
        assert fake_gpu.launches[-1].overlap is overlap


KV = paged([20, 30])[1]
REFUSED: list[tuple[str, Callable[[BatchAttention], Any], type[Exception], str]] = [
    ("format", lambda b: b.plan_on_device(paged([20])[0]), TypeError,
     "kv_format is a PagedKV; it takes a DeviceKV"),
    ("host", lambda b: b.plan([0, 1, 2], KV), TypeError, "kv_format is a DeviceKV.*plan_on_device"),
    ("q_len", lambda b: b.plan_on_device(KV, q_len=0), ValueError, "q_len is 0"),
    ("q_len type", lambda b: b.plan_on_device(KV, q_len=1.0), TypeError, "q_len is 1.0"),
    ("rows", lambda b: b.plan_on_device(KV, q_len=17), ValueError,
     r"q_len is 17.* 68 packed query rows.*use plan\(\)"),
    ("capacity", lambda b: b.plan_on_device(paged([1] * 9)[1]), ValueError,
     "9 requests.*max_requests is 8"),
    ("none", lambda b: b.plan_on_device(DeviceKV.from_ragged(ints(0), 1)), ValueError,
     "no requests"),
    ("scalar", lambda b: b.plan_on_device(KV, scalars={"window_left": 3}), ValueError,
     "no scalar.*window_left"),
    ("device", lambda b: b.plan_on_device(DeviceKV.from_ragged(ints(0, 1).to("meta"), 1)),
     TypeError, "kv_indptr is on device meta; it takes cpu"),
]  # fmt: skip


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("call", "error", "message"), [c[1:] for c in REFUSED], ids=[c[0] for c in REFUSED]
)
def test_refused(
    fake_gpu: Any,
    backend: str,
    call: Callable[[BatchAttention], Any],
    error: type[Exception],
    message: str,
) -> None:
    make = fake_gpu.batch if backend == "cuda" else BatchAttention
    options = {} if backend == "cuda" else {"device": "cpu"}
    batch, kv = planned(make, [20, 30], **options)
    with pytest.raises(error, match=message):
        call(batch)
    assert fake_gpu.launches == []
    batch.plan_on_device(kv)  # the object still works
    batch.run(zeros(2, 8, 128), zeros(4, 2, PAGE, 2, 128))


def test_refused_by_the_gpu_alone(fake_gpu: Any) -> None:
    batch, _ = planned(fake_gpu.batch, [20], max_requests=8192, max_pages=1 << 14)
    with pytest.raises(ValueError, match=r"5000 requests.*up to 4096; use plan\(\)"):
        batch.plan_on_device(paged([1] * 5000)[1])
    with pytest.raises(ValueError, match=r"ragged KV, but the first plan.*pages of 16"):
        batch.plan_on_device(DeviceKV.from_ragged(ints(0, 1), 1))
    many = fake_gpu.batch(128, 128, 128, cuda_graph=True).plan([0, 1], paged([20])[0])
    with pytest.raises(ValueError, match=r"num_kv_heads is 128; .*up to 127; use plan\(\)"):
        many.plan_on_device(paged([20])[1])


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_needs_a_fixed_kernel(fake_gpu: Any, backend: str) -> None:
    make = fake_gpu.batch if backend == "cuda" else BatchAttention
    options = {} if backend == "cuda" else {"device": "cpu"}
    with pytest.raises(ValueError, match=r"cuda_graph is False; .*use plan\(\)"):
        planned(make, [20], cuda_graph=False, **options)[0].plan_on_device(paged([20])[1])
    with pytest.raises(RuntimeError, match=r"before plan\(\)"):
        make(8, 2, 128, cuda_graph=True, **options).plan_on_device(paged([20])[1])


FAULTS = {
    (1, 2, -4): r"kv_indptr\[3\] is -4: kv_indptr must not decrease",
    (2, 0, 9): r"kv_indptr\[1\] is 9, but kv_indices has 4 entries",
    (3, 5, 17): r"kv_last_page_len\[5\] is 17; it takes 1 .. 16",
    (5, 1, 1 << 30): r"request 1 has 1073741824 keys or more",
}


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_faults_are_raised_once(fake_gpu: Any, fault: tuple[int, int, int]) -> None:
    batch, kv = planned(fake_gpu.batch, [20, 30])
    batch.check_plan()
    batch.plan_on_device(kv)
    batch.check_plan()
    batch._backend._planner._status[:3] = ints(*fault)  # type: ignore[union-attr]  # the GPU's
    with pytest.raises(ValueError, match=FAULTS[fault] + ".*planned as empty"):
        batch.check_plan()
    batch.check_plan()


@pytest.mark.parametrize("kind", ["paged", "block table", "ragged"])
def test_cpu_tensors(kind: str) -> None:
    """The plan and the output of plan(), from tensors that change in place."""
    generator = torch.Generator().manual_seed(1)
    batch = BatchAttention(4, 2, 64, dtype=torch.float32, device="cpu", cuda_graph=True)
    q = torch.randn(6, 4, 64, generator=generator)
    lengths = [40, 0, 17]
    rows = [0, 2, 4, 6]
    host: PagedKV | RaggedKV
    if kind == "ragged":
        kv = tuple(torch.randn(57, 2, 64, generator=generator) for _ in range(2))
        host, indptr = RaggedKV([0, 40, 40, 57]), ints(0, 0, 0, 0)
        device, changes = DeviceKV.from_ragged(indptr, 57), [(indptr, ints(0, 40, 40, 57))]
    else:
        kv = (torch.randn(8, 2, PAGE, 2, 64, generator=generator),)
        host, same = paged(lengths)
        if kind == "paged":
            last = ints(0, 0, 0)
            indptr = ints(0, 0, 0, 0)
            device = DeviceKV.from_paged(indptr, same.page_table, last, PAGE)
            changes = [(indptr, same.kv_indptr), (last, same.kv_last_page_len)]
        else:
            table, seq_lens = ints([0, 1, 2], [0, 0, 0], [3, 4, 0]), ints(0, 0, 0)
            device = DeviceKV.from_block_table(table, seq_lens, PAGE)
            changes = [(seq_lens, ints(*lengths))]
    want = batch.plan(rows, host).run(q, *kv)
    assert batch.last_plan is not None
    buffer = batch.last_plan.buffer
    assert (batch.plan_on_device(device, q_len=2).run(q, *kv) == 0).all()
    for tensor, values in changes:
        tensor.copy_(values)
    assert torch.equal(batch.plan_on_device(device, q_len=2).run(q, *kv), want)
    batch.check_plan()
    got = batch.last_plan.buffer
    kv_start = PlanLayout(8, 3).requests + 2 + 8 * np.arange(3)
    if kind == "block table":  # rows of the table have room for more
        got[kv_start] = buffer[kv_start]
    starts = got != buffer
    assert not starts.any() or kind == "block table"


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: DeviceKV.from_ragged([0, 1], 1), TypeError, "kv_indptr is a list"),
        (lambda: DeviceKV.from_ragged(ints(0, 1).long(), 1), TypeError, "dtype torch.int64"),
        (lambda: DeviceKV.from_ragged(ints(), 1), ValueError, "kv_indptr is empty"),
        (lambda: DeviceKV.from_ragged(ints([0], [1]), 1), ValueError, "kv_indptr has shape"),
        (lambda: DeviceKV.from_ragged(ints(0, 1, 2, 3)[::2], 1), ValueError, "stride 2"),
        (lambda: DeviceKV.from_ragged(ints(0, 1), 0), ValueError, "num_rows is 0"),
        (lambda: DeviceKV.from_paged(ints(0, 1), ints(0), ints(1, 1), 4), ValueError,
         "kv_last_page_len has 2 entries, but there are 1 requests"),
        (lambda: DeviceKV.from_paged(ints(0, 1), ints(0), ints(1), 0), ValueError,
         "page_size is 0"),
        (lambda: DeviceKV.from_block_table(ints([0], [1]), ints(1), 4), ValueError,
         "block_tables has 2 entries, but there are 1 requests"),
        (lambda: DeviceKV.from_block_table(ints(0), ints(1), 4), ValueError, "2 dimensions"),
    ],
)  # fmt: skip
def test_tensors_are_checked(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_wrong_lengths_on_the_cpu() -> None:
    batch, _ = planned(BatchAttention, [20, 30], device="cpu")
    wrong = DeviceKV.from_paged(ints(0, 2, 5), ints(0, 1, 2, 3), ints(4, 4), PAGE)
    with pytest.raises(ValueError, match=r"kv_indices has 4 entries but kv_indptr\[-1\] is 5"):
        batch.plan_on_device(wrong)
    with pytest.raises(ValueError, match=r"kv_indptr\[-1\] is 9, but num_rows is 8"):
        DeviceKV.from_ragged(ints(0, 9), 8).on_host()
