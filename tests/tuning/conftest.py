"""A GPU that is a formula: what kernels of the tuner "take" on it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime.device import DeviceInfo
from cute_attn.tuning import Candidate, TuneStep, files

H200 = DeviceInfo(
    index=0,
    name="NVIDIA H200",
    arch="sm_90a",
    num_sms=132,
    smem_per_block_optin=232448,
    smem_per_sm=233472,
    registers_per_sm=65536,
    l2_bytes=60 << 20,
    memory_bytes=141 << 30,
    driver="13.0",
)


class FormulaSession:
    """Times of a formula, with noise of one per cent."""

    def __init__(self, bench: FormulaBench, candidates: Sequence[Candidate]) -> None:
        self._bench = bench
        self._candidates = candidates
        self.closed = False

    @property
    def candidates(self) -> Sequence[Candidate]:
        return self._candidates

    def burst(self, candidate: Candidate) -> float:
        self._bench.bursts += 1
        self._bench.on_burst()
        noise = 1 + self._bench.noise * (self._bench.rng.random() - 0.5)
        return self._bench.us(candidate) * noise

    def error(self, candidate: Candidate) -> float:
        return math.nan if candidate in self._bench.wrong else 0.0

    def close(self) -> None:
        self.closed = True


class FormulaBench:
    """A bench whose kernels take `us(candidate)`; those in `wrong` leave rows out."""

    def __init__(self, us: Callable[[Candidate], float], *, noise: float = 0.01) -> None:
        self.us, self.noise = us, noise
        self.num_sms = H200.num_sms
        self.rng = random.Random(0)
        self.bursts = 0
        self.wrong: set[Candidate] = set()
        self.opened: list[str] = []
        self.on_burst: Callable[[], None] = lambda: None

    def open(self, step: TuneStep, specs: Mapping[Candidate, KernelSpec]) -> FormulaSession:
        self.opened.append(step.name)
        return FormulaSession(self, list(specs))


@pytest.fixture
def h200() -> DeviceInfo:
    return H200


@pytest.fixture(autouse=True)
def nothing_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans know what a test has stored, and no more."""
    monkeypatch.setattr(files, "SHIPPED", tmp_path / "shipped")
