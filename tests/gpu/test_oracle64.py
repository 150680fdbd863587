"""The torch oracle agrees with the NumPy one, which is the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests import oracle
from tests.gpu import oracle64

SHAPES = [(5, 5), (1, 33), (40, 33), (0, 7), (3, 0), (129, 200)]


@pytest.mark.parametrize("mask", ["full", "causal", "window", "causal_window"])
@pytest.mark.parametrize("soft_cap", [None, 3.0])
def test_same_numbers(mask: str, soft_cap: float | None) -> None:
    generator = torch.Generator().manual_seed(7)
    q_lens = [q for q, _ in SHAPES]
    q = torch.randn(sum(q_lens), 6, 16, generator=generator)
    keys = [torch.randn(n, 2, 16, generator=generator) for _, n in SHAPES]
    values = [torch.randn(n, 2, 16, generator=generator) for _, n in SHAPES]
    window_left = 20 if "window" in mask else None
    out, lse = oracle64.attend_batch(
        q,
        q_lens,
        keys,
        values,
        causal="causal" in mask,
        window_left=window_left,
        soft_cap=soft_cap,
    )
    want, want_lse = oracle.attend_batch(
        q,
        np.concatenate([[0], np.cumsum(q_lens)]),
        keys,
        values,
        mask=oracle.mask_of(mask, window_left),
        soft_cap=soft_cap,
    )
    assert oracle.relative_error(out, want) < 1e-12
    assert oracle.lse_error(lse, want_lse) < 1e-12


def test_errors_are_those_of_the_oracle() -> None:
    generator = torch.Generator().manual_seed(8)
    want = torch.randn(50, 3, 8, generator=generator, dtype=torch.float64)
    want_lse = torch.randn(50, 3, generator=generator, dtype=torch.float64)
    want[:2], want_lse[:2] = 0, -torch.inf
    out = want + 0.01 * torch.randn(50, 3, 8, generator=generator)
    out[:2] = 0
    lse = want_lse.float() + 0.001
    err, row, far, exact = oracle64.errors(out, lse, want, want_lse)
    assert err == pytest.approx(oracle.relative_error(out, want.numpy()))
    assert row == pytest.approx(oracle.worst_row_error(out, want.numpy()))
    assert far == pytest.approx(oracle.lse_error(lse, want_lse.numpy()), abs=1e-6)
    assert exact


@pytest.mark.parametrize("wrong", ["nan", "written empty row", "lse of an empty row"])
def test_errors_see_what_is_wrong(wrong: str) -> None:
    want = torch.ones(4, 1, 8, dtype=torch.float64)
    want_lse = torch.zeros(4, 1, dtype=torch.float64)
    want[0], want_lse[0] = 0, -torch.inf
    out, lse = want.clone(), want_lse.float()
    if wrong == "nan":
        out[2, 0, 3] = torch.nan
    elif wrong == "written empty row":
        out[0, 0, 1] = 1e-30
    else:
        lse[0] = -50000
    err, row, _, exact = oracle64.errors(out, lse, want, want_lse)
    assert (not err <= 1 and not row <= 1) if wrong == "nan" else not exact
