"""`cute-attn demo`: its input, its own check, and the whole of it in a reduced form."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn.cli import demo, demo_check
from cute_attn.cli.demo_batch import (
    HEAD_DIM,
    PAGE_SIZE,
    SMALL_HEADS,
    Batch,
    make_batch,
    pick_steps,
    scale_down,
)
from cute_attn.runtime import DeviceInfo, forget_kernels
from cute_attn.workloads import Step, load_steps

Invoke = Callable[..., Any]
CPU = torch.device("cpu")
STEP = Step("made up", ((5, 5), (1, 33), (20, 48), (1, 1)))


@pytest.fixture
def only_sm_80(demo_kernels: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The demo without the kernels that no other test here compiles."""
    monkeypatch.setattr(demo, "ARCHS_WITHOUT_GPU", ("sm_80",))


def test_prints_what_it_did(only_sm_80: None, invoke: Invoke) -> None:
    result = invoke("demo", "--steps", "2", "--device", "cpu")
    assert result.exit_code == 0, result.output
    for words in (
        "Splitwise, ISCA 2024", "FAST 2025", "No GPU", "merge_bf16_d128_q128_g4_sm_80",
        "ampere_tile_bf16_d128_paged_g4_causal_sm_80", "azure-code-300", "azure-chat-900", "A100",
        "lengths scaled", "8/2 heads", "All checks passed",
    ):  # fmt: skip
        assert words in " ".join(result.output.split()), words
    assert "WRONG" not in result.output


def test_json_holds_the_numbers(only_sm_80: None, invoke: Invoke) -> None:
    forget_kernels()  # as in another process
    result = invoke("demo", "--steps", "1", "--device", "cpu", "--json")
    facts = json.loads(result.stdout)
    assert facts["passed"] and facts["device"] == "cpu"
    assert {kernel["status"] for kernel in facts["kernels"]} == {"cached"}
    (step,) = facts["steps"]
    assert step["step"] == "azure-code-300"
    assert 0 < step["errors"]["relative"] < 4e-3
    assert facts["plans"][0]["requests"] == 51


def test_a_wrong_answer_fails(
    only_sm_80: None, invoke: Invoke, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wrong(demo.BatchAttention):
        def run(self, *arguments: Any, **options: Any) -> Any:
            out, lse = super().run(*arguments, **options)
            out[-1, -1] *= 1.1  # one head of one token
            return out, lse

    monkeypatch.setattr(demo, "BatchAttention", Wrong)
    result = invoke("demo", "--steps", "1", "--device", "cpu")
    assert result.exit_code == 1
    assert "WRONG" in result.output and "FAILED" in result.output


def test_a_kernel_that_does_not_compile_fails(
    only_sm_80: None, invoke: Invoke, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path))
    forget_kernels()
    result = invoke("demo", "--steps", "1", "--device", "cpu")
    assert result.exit_code == 1
    assert "CUTE_ATTN_NO_COMPILE=1" in result.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there(invoke: Invoke) -> None:
    result = invoke("demo", "--device", "cuda")
    assert result.exit_code == 1
    assert "error: --device cuda: torch sees no CUDA device" in result.output


def test_report_of_a_gpu(only_sm_80: None, invoke: Invoke, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but the GPU: small steps on CPU tensors, a clock that always says 100 us."""
    free = iter([8 << 30, 1 << 30, 8 << 30])
    cuda = SimpleNamespace(
        is_available=lambda: True,
        current_device=lambda: 0,
        mem_get_info=lambda device: (next(free), 8 << 30),
        empty_cache=lambda: None,
    )
    info = DeviceInfo(0, "Some GPU", "sm_80", 10, 166912, 167936, 65536, 1 << 20, 8 << 30, "13.0")
    steps = [scale_down(step)[0] for step in pick_steps(3)]
    for name, value in (
        ("torch", SimpleNamespace(cuda=cuda, device=lambda *_: CPU)),
        ("device_info", lambda index: info),
        ("HEADS", SMALL_HEADS),
        ("pick_steps", lambda count: steps),
        ("microseconds_per_run", lambda attention, batch: 100.0),
    ):
        monkeypatch.setattr(demo, name, value)
    result = invoke("demo")
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert "GPU: Some GPU, 10 SMs, sm_80" in lines
    assert f"{steps[1].name} left out: its cache does not fit in GPU memory" in lines
    moved = make_batch(steps[0], SMALL_HEADS, CPU).num_bytes
    measured = lines[next(i for i, line in enumerate(lines) if "TFLOP/s" in line) :]
    row = next(line.split() for line in measured if line.strip().startswith(steps[0].name))
    assert row[1:3] == ["100.0", f"{moved / 100e-6 / 1e9:.0f}"]
    assert row[-1] == "ok"


@pytest.mark.gpu
def test_on_the_gpu(invoke: Invoke) -> None:
    result = invoke("demo", "--steps", "3", "--json")
    facts = json.loads(result.stdout)
    assert result.exit_code == 0 and facts["passed"]
    assert len(facts["steps"]) == 3
    for step in facts["steps"]:
        assert step["divided_by"] == 1
        assert 10 < step["gbps"] < 20_000 and step["us"] > 0


def test_every_step_can_be_picked_and_the_first_differ() -> None:
    assert {step.name for step in pick_steps(16)} == {step.name for step in load_steps()}
    first = pick_steps(4)
    assert [step.name for step in first] == [step.name for step in pick_steps(16)[:4]]
    assert len({step.name.rpartition("-")[0] for step in first}) == 3
    assert any(step.prefill_rows == 0 for step in first)


@pytest.mark.parametrize("step", load_steps(), ids=lambda step: step.name)
def test_scaled_steps_keep_their_kind(step: Step) -> None:
    small, divisor = scale_down(step)
    assert len(small.requests) == 8
    assert all(1 <= q <= kv <= 1024 for q, kv in small.requests)
    assert max(small.kv_lens) > 512  # not smaller than need be
    assert bool(small.prefill_rows) == bool(step.prefill_rows)
    assert 1 in small.q_lens
    originals = {(max(1, q // divisor), max(1, kv // divisor)) for q, kv in step.requests}
    assert set(small.requests) <= originals


def dense_keys(batch: Batch) -> list[tuple[Any, Any]]:
    cache = batch.cache
    return [
        oracle.gather_paged(cache[:, 0], cache[:, 1], pages, length)
        for pages, length in zip(batch.pages, batch.step.kv_lens, strict=True)
    ]


def test_cache_holds_the_requests_and_nan_elsewhere() -> None:
    batch = make_batch(STEP, SMALL_HEADS, CPU)
    keys = dense_keys(batch)
    assert all(np.isfinite(k).all() and np.isfinite(v).all() for k, v in keys)
    owned = sum(k.size + v.size for k, v in keys)
    assert int(batch.cache.isfinite().sum()) == owned
    assert batch.cache.shape[1:] == (2, PAGE_SIZE, SMALL_HEADS.kv, HEAD_DIM)
    assert list(batch.kv_format.kv_len) == list(STEP.kv_lens)


def test_counts_bytes_and_flops() -> None:
    batch = make_batch(STEP, SMALL_HEADS, CPU)
    visible = sum(
        int((np.arange(kv)[None, :] <= np.arange(kv - q, kv)[:, None]).sum())
        for q, kv in STEP.requests
    )
    assert batch.flops == 4 * HEAD_DIM * SMALL_HEADS.qo * visible
    owned = sum(k.size + v.size for k, v in dense_keys(batch))
    assert batch.num_bytes == 2 * (owned + 2 * batch.q.numel())


def test_dense_agrees_with_the_oracle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_check, "_MAX_SCORES", 8 * 48 * 7)  # 7 of 20 rows at a time
    batch = make_batch(STEP, SMALL_HEADS, CPU, seed=3)
    keys = dense_keys(batch)
    expected, expected_lse = oracle.attend_batch(
        batch.q, batch.qo_indptr, [k for k, _ in keys], [v for _, v in keys],
        mask=oracle.mask_of("causal"),
    )  # fmt: skip
    errors = demo_check.compare(batch, torch.from_numpy(expected), torch.from_numpy(expected_lse))
    assert errors.relative < 1e-12 and errors.worst_row < 1e-12 and errors.lse < 1e-12

    doubled = expected.copy()
    doubled[4, 2] *= 2
    errors = demo_check.compare(batch, torch.from_numpy(doubled), torch.from_numpy(expected_lse))
    assert math.isclose(errors.worst_row, 1.0, rel_tol=1e-6)
    assert not errors.passed


def test_nan_does_not_pass() -> None:
    assert not demo_check.Errors(math.nan, 0.0, 0.0).passed
    assert not demo_check.Errors(0.0, 0.0, math.nan).passed
