"""What a variant's own trace says in float64, dense and without plans, against the formulas that
know no variant: kernels are held against the latter, and so against both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cute_attn import Variant
from tests.gpu.variant_case import HEADS, KV_HEADS, ROW_LENGTHS, VariantCase, dense, random
from tests.gpu.variant_cases import CASES

F64 = Any  # a float64 array


def by_trace(
    variant: Variant, q: F64, k: F64, v: F64, b: int, given: dict[str, Any]
) -> tuple[F64, F64]:
    """out (heads, q_len, dim) and lse (heads, q_len) of one request through a variant's hooks, the
    last query at the last key; lse is 0 without softmax."""
    i = np.arange(len(k) - len(q), len(k))
    j = np.arange(len(k))
    q, k, v = (x.transpose(1, 0, 2) for x in (q, k, v))
    rows = {"query": (q, i), "key": (k, j), "value": (v, j)}
    for role, hook in variant.vector_hooks.items():
        x, pos = rows[role]
        out = [hook(x[h], b, h, pos, **given) for h in range(len(x))]
        rows[role] = np.stack(out), pos
    q, k, v = (x for x, _ in rows.values())
    k, v = (x.repeat(len(q) // len(k), 0) for x in (k, v))
    h, q_idx = np.arange(len(q))[:, None, None], i[:, None]
    scores = q @ k.transpose(0, 2, 1) * q.shape[-1] ** -0.5
    if variant.logits is not None:
        scores = variant.logits(scores, b, h, q_idx, j, **given)
    if variant.mask is not None:
        seen = np.broadcast_to(variant.mask(b, h, q_idx, j, **given), scores.shape)
        scores = np.where(seen, scores, -np.inf if variant.softmax else 0.0)
    lse = np.zeros(scores.shape[:2])
    weights = scores
    if variant.softmax:
        lse = np.logaddexp.reduce(scores, axis=-1) if len(j) else np.full_like(lse, -np.inf)
        if variant.row_state is not None:
            lse = variant.row_state(lse, b, h[..., 0], i, **given)
        weights = np.exp(scores - np.where(np.isneginf(lse), 0, lse)[..., None])
    out = weights @ v
    if variant.output is not None:
        out = variant.output(out, b, h, q_idx, np.arange(v.shape[-1]), **given)
    return out, lse


def arrays(case: VariantCase, q_len: list[int], kv_len: list[int]) -> dict[str, Any]:
    """Scalars and elements of tensors."""
    given = {**case.tensors, **case.of_lengths(q_len, kv_len)}
    elements = {t.name: t.elements(given[t.name]) for t in case.variant.tensors}
    return {**case.variant.values(case.scalars), **elements}


@pytest.mark.parametrize("phase", ["append", "decode"])
@pytest.mark.parametrize("name", [n for n in CASES if not n.endswith(("_1", "_16"))])
def test_traces_in_float64(name: str, phase: str) -> None:
    case, lengths = CASES[name], ROW_LENGTHS[phase]
    if any(part.is_text for hook in case.variant.hooks.values() for part in hook.parts or (hook,)):
        pytest.skip("a hook is C++ text: it has no trace")
    given = arrays(case, *lengths)
    for b, (q_len, kv_len) in enumerate(zip(*lengths, strict=True)):
        q = random(3 * b, q_len, HEADS, case.dim).double()
        k, v = (random(3 * b + n, kv_len, KV_HEADS, case.dim).double() for n in (1, 2))
        out, lse = by_trace(case.variant, q.numpy(), k.numpy(), v.numpy(), b, given)
        expected, expected_lse = dense(q, k, v, b, case)
        np.testing.assert_allclose(out, expected.transpose(0, 1), rtol=2e-6, atol=2e-6)
        np.testing.assert_allclose(lse, expected_lse.T, rtol=2e-6, atol=2e-6)
