"""Rows of captured tensors in traced functions: unrolled, against the same on tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import TraceError, from_flex
from cute_attn.variants import Tensor, Variant

POINTS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
LISTS = torch.tensor([[0, 3, 3], [5, 1, 2], [4, 4, 4], [0, 1, 2], [5, 5, 3], [1, 0, 4]])
TRUE = POINTS > 0
Q, KV = torch.arange(6)[:, None], torch.arange(6)[None, :]

MODS: list[Callable[..., Any]] = [
    lambda s, b, h, q, k: s + (POINTS[q] * POINTS[k]).sum(-1),
    lambda s, b, h, q, k: s - ((POINTS[q] - POINTS[k]) ** 2).sum(dim=-1).sqrt(),
    lambda s, b, h, q, k: s + POINTS[q].mean(-1) * (1 - POINTS[k]).prod(-1),
    lambda s, b, h, q, k: s + torch.amax(POINTS[q], -1) - POINTS[k].amin(dim=-1),
    lambda s, b, h, q, k: torch.where((LISTS[q] == k[..., None]).any(-1), s, -1.0),
    lambda s, b, h, q, k: torch.where((k.unsqueeze(-1) > LISTS[q]).all(dim=-1), s, -1.0),
    lambda s, b, h, q, k: s + (LISTS[q] * 2 - 1)[..., 1] + torch.abs(-POINTS[k])[..., 3],
    lambda s, b, h, q, k: s + torch.maximum(POINTS[q], POINTS[k]).sum(-1),
    lambda s, b, h, q, k: s + torch.where(TRUE[q] & ~TRUE[k], 1.0, POINTS[k]).sum(-1),
    lambda s, b, h, q, k: s + (TRUE[q] | TRUE[k]).sum(-1) + TRUE[q].to(torch.float32).sum(-1),
    lambda s, b, h, q, k: s + (2.0 / (POINTS[q].exp() + 1)).tanh()[-1] + (LISTS[k] // 2).sum(-1),
]  # fmt: skip


def as_vmap_has_it(mod: Callable[..., Any]) -> Callable[..., Any]:
    """A mod for numbers, over all pairs."""
    for dims in ((0, None, None, None, 0), (0, None, None, 0, None)):
        mod = torch.vmap(mod, in_dims=dims)
    return mod


@pytest.mark.parametrize("mod", MODS, ids=range(len(MODS)))
def test_against_vmap(mod: Callable[..., Any]) -> None:
    score = torch.linspace(-2, 2, 36).reshape(6, 6)
    zero = torch.tensor(0)
    expected = as_vmap_has_it(mod)(score, zero, zero, Q[:, 0], KV[0])
    variant = from_flex(mod)
    assert variant.logits is not None
    tensors = {t.name: np.asarray(t.captured.tensor) for t in variant.tensors if t.captured}
    got = variant.logits(score.numpy(), 0, 0, Q.numpy(), KV.numpy(), **tensors)
    np.testing.assert_allclose(got, expected.numpy(), rtol=2e-6, atol=2e-6)


def test_only_what_is_needed_is_read() -> None:
    wide = torch.zeros(3, 1000)
    variant = from_flex(lambda s, b, h, q, k: s + (wide[h] + 1)[k])
    assert variant.logits is not None and variant.logits.program is not None
    assert sum(x.op == "load" for x in variant.logits.program.result.walk()) == 1


ERRORS: list[tuple[Callable[..., Any], str]] = [
    (lambda s, b, h, q, k: s + POINTS[q], "logits function returns a row of POINTS of 4 elements"),
    (
        lambda s, b, h, q, k: torch.where(POINTS[q].sum() > POINTS[k][POINTS[q]], s, 0.0),
        "a row of POINTS is no number; sum",
    ),
    (lambda s, b, h, q, k: s + (POINTS[q] * LISTS[k]).sum(), "POINTS and LISTS have lengths 4 and"),
    (lambda s, b, h, q, k: s + POINTS[q].sum(1), "has one dimension, which reductions leave out"),
    (lambda s, b, h, q, k: s + POINTS[q].max(-1)[0], r"also says where; take amax\(\)"),
    (lambda s, b, h, q, k: s + torch.cumsum(POINTS[q], -1)[0], "torch.cumsum of a row of POINTS"),
    (lambda s, b, h, q, k: s + torch.zeros(3, 200)[h].sum(-1), "up to 128 are unrolled"),
]


@pytest.mark.parametrize(("mod", "message"), ERRORS, ids=range(len(ERRORS)))
def test_errors(mod: Callable[..., Any], message: str) -> None:
    with pytest.raises(TraceError, match=message) as caught:
        from_flex(mod)
    assert "lambda s, b, h, q, k: " in str(caught.value)
    with pytest.raises((TraceError, AttributeError), match="no attribute 'topk'"):
        from_flex(lambda s, b, h, q, k: s + POINTS[q].topk(2))


def test_lengths_of_declared_tensors_are_not_known() -> None:
    def rows(s: Any, b: Any, h: Any, q: Any, k: Any, *, table: Any) -> Any:
        return s + table[q].sum(-1)

    def elements(s: Any, b: Any, h: Any, q: Any, k: Any, *, table: Any) -> Any:
        return s + sum((table[q] * table[k])[n] for n in range(3))

    table = Tensor("table", "f32", 2)
    with pytest.raises(TraceError, match=r"not known while it is traced.*row\[0\]"):
        Variant("rows", logits=rows, params=[table])
    logits = Variant("elements", logits=elements, params=[table]).logits
    assert logits is not None
    got = logits(np.zeros(6), 0, 0, np.arange(6), 2, table=POINTS.numpy())
    expected = (POINTS[:, :3] * POINTS[2, :3]).sum(-1)
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6)
