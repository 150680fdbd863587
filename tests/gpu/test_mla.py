"""Multi-head latent attention in its absorbed form on Hopper, against float64."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import cute_attn.flashinfer as flashinfer
from cute_attn import BatchAttention, BatchMLA, DeviceKV, PagedKV, RaggedKV
from cute_attn.api import dispatch
from tests.gpu import oracle64
from tests.gpu.check import BOUNDS, LSE_BOUND
from tests.gpu.mla import (
    BORDERS,
    CASES,
    DELAYED,
    DTYPES,
    SPLIT,
    VARIANTS,
    LatentCase,
    Latents,
    make,
    oracle_arguments,
)
from tests.gpu.test_delays import choose_delayed

pytestmark = pytest.mark.gpu

WINDOW = 100
SCALE = 192**-0.5
H16, H128 = LatentCase(16, 64), LatentCase(128, 64)


@pytest.fixture(autouse=True)
def hopper(arch: str) -> None:
    if arch != "sm_90a":
        pytest.skip(f"hopper_mla is for sm_90a; this is {arch}")


def planned(case: LatentCase, batch: Latents, device: torch.device, **options: Any) -> BatchMLA:
    mla = BatchMLA(
        case.heads,
        dtype=DTYPES[case.dtype],
        variant=VARIANTS[case.variant],
        device=device,
        **options,
    )
    scalars = {"window_left": WINDOW} if case.variant == "window" else None
    return mla.plan(batch.qo_indptr, batch.kv_format, scalars=scalars)


def wanted(case: LatentCase, batch: Latents) -> Any:
    options: dict[str, Any] = {"causal": case.variant != "full", "sm_scale": SCALE}
    if case.variant == "window":
        options["window_left"] = WINDOW
    return oracle64.attend_batch(**oracle_arguments(batch), **options)


def assert_near(case: LatentCase, got: Any, want: Any) -> float:
    err, _, far, exact = oracle64.errors(*got, *want)
    assert err <= BOUNDS[case.dtype] and far <= LSE_BOUND and exact, (str(case), err, far, exact)
    return err


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("kv_lens", [[*BORDERS, 0], SPLIT], ids=["borders", "split"])
def test_against_float64(
    case: LatentCase, kv_lens: Sequence[int], device: torch.device, record: Callable[..., None]
) -> None:
    batch = make(case, kv_lens, device)
    mla = planned(case, batch, device)
    out, lse = mla.run(batch.q, batch.cache, return_lse=True)
    err = assert_near(case, (out, lse), wanted(case, batch))
    for _ in range(3):
        again, lse_again = mla.run(batch.q, batch.cache, return_lse=True)
        assert torch.equal(again, out) and torch.equal(lse_again, lse)
    record("G", f"mla {case} {len(kv_lens)} requests", err=err)


def test_many_items_of_a_block(device: torch.device) -> None:
    """Several tiles one after the other, of odd and even numbers of KV blocks."""
    batch = make(
        LatentCase(128, 64, tokens=(1,)), [1000 + 37 * (i % 5) for i in range(300)], device
    )
    mla = planned(H128, batch, device)
    assert_near(H128, mla.run(batch.q, batch.cache, return_lse=True), wanted(H128, batch))


@pytest.mark.parametrize("case", [H16, H128], ids=str)
def test_a_decode_is_the_last_row_of_a_prefill(case: LatentCase, device: torch.device) -> None:
    """At all lengths from 1 to 300."""
    lengths = list(range(1, 301))
    one = LatentCase(case.heads, case.page_size, tokens=(1,))
    batch = make(one, lengths, device, seed=2)
    decode = planned(one, batch, device).run(batch.q, batch.cache)
    q = torch.zeros(sum(lengths), case.heads, 576, dtype=batch.q.dtype, device=device)
    last = torch.tensor(lengths, device=device).cumsum(0) - 1
    q[last] = batch.q
    prefill = Latents(q, batch.cache, batch.kv_format, batch.rows, lengths)
    got = planned(case, prefill, device).run(q, batch.cache)[last]
    difference = (got.double() - decode.double()).norm() / decode.double().norm()
    assert difference <= BOUNDS[case.dtype]


def test_columns_in_two_tensors_give_the_same_bits(device: torch.device) -> None:
    for page in (64, 1):
        case = LatentCase(128, page)
        batch = make(case, [300, 1000, 64], device)
        mla = planned(case, batch, device)
        whole = mla.run(batch.q, batch.cache)
        halves = batch.cache[..., :512].contiguous(), batch.cache[..., 512:].contiguous()
        assert torch.equal(mla.run((batch.q[..., :512], batch.q[..., 512:]), halves), whole)
        moved = batch.cache.clone()
        assert torch.equal(mla.run(batch.q, moved), whole)  # of known shapes, elsewhere


def test_values_that_are_no_view_of_the_keys_are_refused(device: torch.device) -> None:
    batch = make(H16, [100], device)
    attention = BatchAttention(16, 1, 576, head_dim_vo=512, device=device)
    attention.plan([0, 1], batch.kv_format)
    k = batch.cache.unsqueeze(2)
    q = batch.q[:1]
    attention.run(q, k, k[..., :512])
    with pytest.raises(ValueError, match="v is no view of k"):
        attention.run(q, k, k[..., :512].clone())
    with pytest.raises(ValueError, match="v is no view of k"):
        attention.run(q, k.clone(), k[..., :512])


def test_rows_of_other_requests_may_hold_anything(device: torch.device) -> None:
    """16 heads: 48 rows of the tile are nobody's, and the shared memory behind them holds NaN."""
    case = LatentCase(16, 64, tokens=(4, 1))
    batch = make(case, [500, 700] * 140, device)
    poisoned = batch.q.clone()
    starts = torch.tensor(batch.qo_indptr[:-1:2], device=device)
    for token in range(4):
        poisoned[starts + token] = torch.nan  # requests of four tokens fill whole tiles with it
    mla = planned(case, batch, device)
    want, got = mla.run(batch.q, batch.cache), mla.run(poisoned, batch.cache)
    clean = torch.ones(len(want), dtype=torch.bool, device=device)
    for token in range(4):
        clean[starts + token] = False
    assert torch.equal(got[clean], want[clean]) and got[~clean].isnan().all()


@pytest.mark.parametrize("highest", [4.0, 100.0], ids=["finite", "infinite"])
def test_rising_scores(highest: float, device: torch.device) -> None:
    """Every block outdoes those before it: both warpgroups must follow the other's references."""
    batch = make(LatentCase(128, 0, tokens=(1,)), [1500, 700, 65], device, seed=3)
    begin = 0
    for rows in batch.rows:
        steps = torch.linspace(1, 0, len(rows), device=device)
        rows *= (0.05 * (highest / 0.05) ** steps)[:, None].to(rows.dtype)
        batch.cache[begin : begin + len(rows)] = rows
        begin += len(rows)
    got = planned(H128, batch, device).run(batch.q, batch.cache, return_lse=True)
    want, want_lse = wanted(H128, batch)
    err, _, far, exact = oracle64.errors(*got, want, want_lse)
    scale = max(1.0, float(want_lse.abs().max()) / 16)
    assert err <= BOUNDS["bf16"] and far <= LSE_BOUND * scale and exact, (err, far)


def test_nan_stays_in_its_row(device: torch.device) -> None:
    batch = make(LatentCase(128, 64, tokens=(1,)), [300, 300], device)
    mla = planned(H128, batch, device)
    clean = mla.run(batch.q, batch.cache)
    batch.q[0, 5, 100] = torch.nan
    got = mla.run(batch.q, batch.cache)
    assert got[0, 5].isnan().all()
    got[0, 5] = clean[0, 5]
    assert torch.equal(got, clean)


def test_a_graph_follows_new_lengths(device: torch.device) -> None:
    """One capture, replayed after plans of other lengths."""
    case = LatentCase(128, 64, tokens=(1,))
    first = make(case, [4000] * 8, device)
    mla = planned(case, first, device, cuda_graph=True, max_requests=8, max_pages=1000)
    out = torch.empty(8, 128, 512, dtype=torch.bfloat16, device=device)
    mla.run(first.q, first.cache, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        mla.run(first.q, first.cache, out=out)
    for lengths in ([1, 64, 65, 300, 4000, 17, 128, 999], [2000] * 8):
        rows = [own[:n] for own, n in zip(first.rows, lengths, strict=True)]
        tables = first.kv_format
        assert isinstance(tables, PagedKV)
        pages = [-(-n // 64) for n in lengths]
        table = torch.as_tensor(tables.page_table)
        used = [table[63 * i : 63 * i + n] for i, n in enumerate(pages)]
        indptr = [0, *torch.tensor(pages).cumsum(0).tolist()]
        last = [(n - 1) % 64 + 1 for n in lengths]
        mla.plan(first.qo_indptr, PagedKV(indptr, torch.cat(used), last, 64))
        out.fill_(torch.nan)
        graph.replay()
        batch = Latents(first.q, first.cache, tables, rows, first.q_lens)
        want, _ = wanted(case, batch)
        assert (out.double() - want).norm() <= BOUNDS["bf16"] * want.norm()


def test_batch_invariance(device: torch.device) -> None:
    """A request has the same bits alone and among others."""
    lengths = [9000, 300, 4000, 64, 1]
    case = LatentCase(128, 64, tokens=(1, 2))
    batch = make(case, lengths, device)
    tables = batch.kv_format
    assert isinstance(tables, PagedKV)
    together = planned(case, batch, device, batch_invariant=True).run(batch.q, batch.cache)
    table, begin = torch.as_tensor(tables.page_table), 0
    for i, (n, row) in enumerate(zip(lengths, batch.qo_indptr, strict=False)):
        pages = -(-n // 64)
        own = PagedKV([0, pages], table[begin : begin + pages], [(n - 1) % 64 + 1], 64)
        begin += pages
        rows = slice(row, row + batch.q_lens[i])
        alone = BatchMLA(128, device=device, batch_invariant=True)
        alone.plan([0, batch.q_lens[i]], own)
        assert torch.equal(alone.run(batch.q[rows], batch.cache), together[rows]), n


@pytest.mark.timeout(60, method="thread")  # a hang is what a missing arrival looks like
@pytest.mark.parametrize("case", DELAYED, ids=str)
def test_delays_change_no_bit(
    case: LatentCase,
    device: torch.device,
    record: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Warps that sleep at random between the steps of their roles (hopper/delays.py)."""
    lengths = [64 * (i % 9) + i % 5 * (i % 2) for i in range(400)]
    for kv_lens in (lengths, [3000, 1700]):
        batch = make(case, kv_lens, device, seed=5)
        ramp = torch.linspace(3, 0.2, 576, device=device)  # references rise now and then
        batch.q *= ramp.to(batch.q.dtype)
        plain = planned(case, batch, device)
        want, want_lse = plain.run(batch.q, batch.cache, return_lse=True)
        with monkeypatch.context() as patch:
            patch.setattr(dispatch, "choose", choose_delayed)
            delayed = planned(case, batch, device)
        (kernel,) = delayed.attention.kernels
        assert kernel.spec is not None and kernel.spec.delays
        for _ in range(6):
            out = torch.full_like(want, torch.nan)
            got, lse = delayed.run(batch.q, batch.cache, out=out, return_lse=True)
            assert torch.equal(got, want) and torch.equal(lse, want_lse)
    record("G", f"delays: mla {case}", launches=12, different=0)


def test_a_thousand_launches_give_the_same_bits(device: torch.device) -> None:
    case = LatentCase(128, 64, tokens=(1,))
    batch = make(case, [5000, 300, 1000], device)
    mla = planned(case, batch, device)
    want, want_lse = mla.run(batch.q, batch.cache, return_lse=True)
    outs = torch.empty(10, *want.shape, dtype=want.dtype, device=device)
    lses = torch.empty(10, *want_lse.shape, device=device)
    for _ in range(100):
        outs.fill_(torch.nan)
        for out, lse in zip(outs, lses, strict=True):
            mla.run(batch.q, batch.cache, out=out, lse=lse)
        assert torch.equal(outs, want.expand_as(outs))
        assert torch.equal(lses, want_lse.expand_as(lses))


def test_on_device_plans(device: torch.device) -> None:
    """Up to 64 packed query rows: the same bits as a plan from the host; more are refused."""
    case = LatentCase(16, 64, tokens=(1,))
    batch = make(case, [300, 1, 4000, 64], device)
    tables = batch.kv_format
    assert isinstance(tables, PagedKV)
    mla = planned(case, batch, device, cuda_graph=True, max_requests=4, max_pages=200)
    want = mla.run(batch.q, batch.cache)
    counts = [5, 1, 63, 1]
    kv = DeviceKV.from_paged(
        torch.tensor([0, 5, 6, 69, 70], dtype=torch.int32, device=device),
        torch.as_tensor(tables.page_table).to(device, torch.int32),
        torch.tensor([300 - 4 * 64, 1, 4000 - 62 * 64, 64], dtype=torch.int32, device=device),
        64,
    )
    assert sum(counts) == 70
    got = mla.plan_on_device(kv).run(batch.q, batch.cache)
    mla.attention.check_plan()
    assert torch.equal(got, want)
    many = make(LatentCase(128, 64, tokens=(1,)), [300], device)
    wide = planned(H128, many, device, cuda_graph=True, max_requests=4, max_pages=200)
    with pytest.raises(ValueError, match="128 packed query rows"):
        wide.plan_on_device(kv)


def test_flashinfer_s_wrapper(device: torch.device) -> None:
    case = LatentCase(128, 64)
    batch = make(case, [300, 1000, 64], device)
    tables = batch.kv_format
    assert isinstance(tables, PagedKV)
    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device=device)
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(workspace)
    lengths = torch.tensor([300, 1000, 64], dtype=torch.int32, device=device)
    indptr = torch.tensor([0, 5, 21, 22], dtype=torch.int32, device=device)
    wrapper.plan(
        torch.tensor(batch.qo_indptr, dtype=torch.int32, device=device),
        indptr,
        torch.as_tensor(tables.page_table).to(device, torch.int32),
        lengths,
        128,
        512,
        64,
        64,
        True,
        SCALE,
        torch.bfloat16,
        torch.bfloat16,
    )
    halves = batch.cache[..., :512].contiguous(), batch.cache[..., 512:].contiguous()
    q = batch.q[..., :512], batch.q[..., 512:]
    out, lse = wrapper.run(*q, *halves, return_lse=True, return_lse_base_on_e=True)
    assert_near(case, (out, lse), wanted(case, batch))


def test_ragged_rows(device: torch.device) -> None:
    case = LatentCase(128, 0, tokens=(2,))
    batch = make(case, [128, 700], device)
    assert isinstance(batch.kv_format, RaggedKV)
    got = planned(case, batch, device).run(batch.q, batch.cache, return_lse=True)
    assert_near(case, got, wanted(case, batch))
