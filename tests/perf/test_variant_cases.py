"""Variants of section V on the CPU executor agree with dense formulas that know no `Variant`."""

from __future__ import annotations

import pytest
import torch

from cute_attn import BatchAttention, RaggedKV
from perf.bench_variants import error
from perf.cases import variants

LENGTH, HEADS, DIM = 96, 4, 16
NAMES = list(variants.variant_cases(1, 1, 1))


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows, documents and tables that a short request fills."""
    for name, value in (("WINDOW", 20), ("DOCUMENT", 13), ("REACH", 5)):
        monkeypatch.setattr(variants, name, value)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("rows", [LENGTH, 1], ids=["prefill", "decode"])
def test_formulas(name: str, rows: int) -> None:
    case = variants.variant_cases(2, LENGTH, HEADS)[name]
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2 * rows, HEADS, DIM, generator=generator)
    k, v = torch.randn(2, 2 * LENGTH, HEADS // 2, DIM, generator=generator)
    batch = BatchAttention(
        HEADS, HEADS // 2, DIM, dtype=torch.float32, variant=case.variant, device="cpu"
    )
    keys = [0, LENGTH, 2 * LENGTH]
    batch.plan([0, rows, 2 * rows], RaggedKV(keys), scalars=case.scalars, tensors=case.tensors)
    out = batch.run(q, k, v)
    last = slice(LENGTH, None)
    assert error(case, q[rows:], k[last], v[last], out[rows:]) < 1e-5
    assert error(case, q[rows:], k[last], v[last], out[:rows]) > 0.1


@pytest.mark.parametrize("name", NAMES)
def test_visible_pairs(name: str) -> None:
    case = variants.variant_cases(1, LENGTH, HEADS)[name]
    visible = sum(bool(case.keep(i, torch.tensor(j))) for i in range(LENGTH) for j in range(LENGTH))
    assert variants.visible_pairs(case, LENGTH) == visible
