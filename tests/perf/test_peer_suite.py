"""The runner of FlashInfer's tests, on a suite of our own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from perf import peer_suite, records
from perf.peer_tests import plugin
from perf.peer_tests.files import FILES, in_scope

SUITE = """
import os

import pytest
import torch
from tests.test_helpers.known import ANSWER

import flashinfer
import flashinfer.jit.attention
from flashinfer.fp4_quantization import Config, quantize
from flashinfer.utils import MaskMode, has_flashinfer_jit_cache


def annotated(config: Config | None = None) -> None: ...


@pytest.mark.parametrize("heads", [2, 4, 6, 8])
def test_bits(heads):
    assert has_flashinfer_jit_cache() and MaskMode.CAUSAL.value == 1 and ANSWER == 42
    assert flashinfer.prefill.single_prefill_with_kv_cache is not None
    assert flashinfer.packbits(torch.ones(heads)).tolist() == [256 - (1 << 8 - heads)]


def test_is_wrong():
    assert torch.ones(1) == 0


@pytest.mark.parametrize("head_dim", [64, 512])
def test_is_refused(head_dim):
    flashinfer.xqa(head_dim)


def test_is_absent():
    quantize(1)


def test_is_skipped():
    pytest.skip("not here")


def test_hangs():
    import time

    time.sleep(60)


def test_dies():
    os._exit(3)


def test_comes_after():
    assert flashinfer.page.get_seq_lens(torch.tensor([0, 2]), torch.tensor([3]), 4).tolist() == [7]
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """With one test file, and a `flashinfer` that must not be found."""
    (tmp_path / "tests" / "test_helpers").mkdir(parents=True)
    (tmp_path / "tests" / "attention").mkdir()
    for package in ("tests", "tests/test_helpers", "tests/attention"):
        (tmp_path / package / "__init__.py").touch()
    (tmp_path / "tests" / "test_helpers" / "known.py").write_text("ANSWER = 42\n")
    (tmp_path / FILES[0]).parent.mkdir(exist_ok=True)
    (tmp_path / "tests" / FILES[0]).write_text(SUITE)
    (tmp_path / "flashinfer").mkdir()
    (tmp_path / "flashinfer" / "__init__.py").write_text("raise ImportError('theirs')\n")
    return tmp_path


@pytest.mark.slow
def test_outcomes(checkout: Path) -> None:
    rows = peer_suite.run_file(
        checkout, FILES[0], sample=0, timeout=6, end=time.monotonic() + 200, log=Path(os.devnull)
    )
    outcomes = {row["case"].partition("::")[2]: row["outcome"] for row in rows if "case" in row}
    assert outcomes == {
        **{f"test_bits[{heads}]": "passed" for heads in (2, 4, 6, 8)},
        "test_is_wrong": "failed",
        "test_is_refused[64]": "unsupported",
        "test_is_refused[512]": "unsupported",
        "test_is_absent": "unsupported",
        "test_is_skipped": "skipped",
        "test_hangs": "timeout",
        "test_dies": "crashed",
        "test_comes_after": "passed",
    }
    count = peer_suite.counted(rows)
    assert (count["collected"], count["ran"], count["passed"]) == (12, 11, 5)
    assert (count["in_scope"], count["in_scope_passed"]) == (10, 5)
    assert peer_suite.share(count) == "50.00 % of 10 in scope, 45.45 % of 11 in all"
    twice = peer_suite.added([count, count])
    assert twice["ran"] == 22 and peer_suite.share(twice).startswith("50.00 % of 20")
    told = {}
    for row, times in peer_suite.reasons(rows):
        told[row["test"], row["outcome"]] = (row["reason"], times)
    assert told["test_dies", "crashed"] == ("exit status 3", 1)
    assert told["test_is_refused", "unsupported"][1] == 2


def test_command_and_sample(
    checkout: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (checkout / "tests" / FILES[0]).write_text(SUITE.partition("def test_is_wrong")[0])
    out = tmp_path / "record.jsonl"
    arguments = [str(checkout), "--files", FILES[0], "--record", str(out), "--sample", "3"]
    monkeypatch.setattr(sys, "argv", ["peer_suite", *arguments])
    assert peer_suite.main() == 0
    assert "total: 100.00 % of 3 in scope, 100.00 % of 3 in all; 3 p" in capsys.readouterr().out
    first, *rows = records.read(out)
    assert (first["suite"], first["sample"]) == ("0.6.18", 3)
    assert [row["cfg"] for row in rows] == [FILES[0], "total"]
    assert all((row["collected"], row["taken"]) == (4, 3) for row in rows)
    with pytest.raises(SystemExit, match="--files has nothing; it takes parts of"):
        peer_suite.chosen("page,nothing")


def test_a_sample_is_the_same_every_time() -> None:
    names = [f"a.py::{test}[{i}]" for test in ("test_x", "test_y") for i in range(50)]
    items: Any = [SimpleNamespace(nodeid=name) for name in names]
    taken = [item.nodeid for item in plugin.sampled(items, 7)]
    assert taken == [item.nodeid for item in plugin.sampled(items[::-1], 7)][::-1]
    assert sum("test_x" in name for name in taken) == 7 and len(taken) == 14
    assert plugin.sampled(items, 50) == items


DRY = """
import torch

import flashinfer


def test_decode():
    q = torch.randn(8, 128, device="cuda:0", dtype=torch.float16)
    k = torch.randn(500, 2, 128, device="cuda:0", dtype=torch.float16)
    out = flashinfer.single_decode_with_kv_cache(q, k, k, window_left=64)
    torch.testing.assert_close(out, torch.zeros(8, 128, device="cuda:0", dtype=torch.float16))
"""


def test_kernels_are_listed_without_a_gpu(checkout: Path) -> None:
    (checkout / "tests" / FILES[0]).write_text(DRY)
    command = [sys.executable, "-m", "perf.peer_suite", str(checkout), "--list-kernels"]
    done = subprocess.run(
        [*command, "--files", FILES[0]], capture_output=True, text=True, timeout=120, check=True
    )
    lines = done.stdout.splitlines()
    assert "{'traced': 1}" in lines[0] and lines[-1] == "1 kernels"
    assert lines[1].strip().startswith("ampere_decode_fp16_d128_ragged_g4_causal_window_sm_90_")


@pytest.mark.parametrize(
    ("test", "params", "expected"),
    [
        ("test_x", {"dtype": torch.bfloat16, "head_dim": 128, "page_size": 5}, True),
        ("test_x", {"kv_dtype": torch.float8_e4m3fn, "head_dim": 128}, False),
        ("test_x", {"head_dim": 512}, False),
        ("test_x", {"head_dim": 256, "num_heads": 512}, True),
        ("test_batch_attention_nvfp4", {"head_dim": 128}, False),
    ],
)
def test_scope(test: str, params: dict[str, Any], expected: bool) -> None:
    assert in_scope(test, params) is expected
