"""The oracle itself, against attention spelled out one pair at a time and against torch."""

from __future__ import annotations

import math

import numpy as np
import oracle
import pytest
import torch


def one_pair_at_a_time(q: np.ndarray, k: np.ndarray, v: np.ndarray, window: int, cap: float):
    group = q.shape[1] // k.shape[1]
    out = np.zeros((*q.shape[:2], v.shape[-1]))
    lse = np.full(q.shape[:2], -math.inf)
    for i in range(q.shape[0]):
        for h in range(q.shape[1]):
            weights = []
            for j in range(k.shape[0]):
                position = i + k.shape[0] - q.shape[0]
                if position - window <= j <= position:
                    score = sum(q[i, h] * k[j, h // group]) / math.sqrt(q.shape[2])
                    weights.append((math.exp(cap * math.tanh(score / cap)), j))
            if weights:
                total = sum(w for w, _ in weights)
                lse[i, h] = math.log(total)
                out[i, h] = sum(w / total * v[j, h // group] for w, j in weights)
    return out, lse


def test_weights_sinks_and_output_against_a_loop() -> None:
    rng = np.random.default_rng(9)
    q, k, v = (rng.standard_normal((n, h, 8)) for n, h in ((6, 4), (4, 2), (4, 2)))
    mask, sinks = oracle.mask_of("causal"), rng.standard_normal(4)
    weighed, _ = oracle.attend(q, k, v, mask=mask, weight=np.square)
    sunk, lse = oracle.attend(q, k, v, mask=mask, sinks=sinks)
    bent, _ = oracle.attend(q, k, v, mask=mask, output=lambda out, h, i: out * h + i)
    plain, _ = oracle.attend(q, k, v, mask=mask)
    for i in range(6):
        for h in range(4):
            scores = [q[i, h] @ k[j, h // 2] / math.sqrt(8) for j in range(max(0, i - 1))]
            weights = np.array([math.exp(s) for s in scores])
            total = weights.sum() + math.exp(sinks[h])
            values = v[: len(scores), h // 2]
            assert np.allclose(weighed[i, h], np.square(scores) @ values)
            assert np.allclose(sunk[i, h], weights / total @ values)
            assert np.isclose(lse[i, h], math.log(total))
            assert np.allclose(bent[i, h], plain[i, h] * h + i - 2)
    none, lse = oracle.attend(q, k[:0], v[:0], sinks=sinks)
    assert not none.any() and np.allclose(lse, sinks)


@pytest.mark.parametrize(("q_len", "kv_len"), [(3, 5), (5, 3), (1, 4), (4, 0)])
def test_against_a_loop(q_len: int, kv_len: int) -> None:
    rng = np.random.default_rng(q_len)
    q = rng.standard_normal((q_len, 4, 8))
    k, v = rng.standard_normal((kv_len, 2, 8)), rng.standard_normal((kv_len, 2, 6))
    got = oracle.attend(q, k, v, mask=oracle.mask_of("causal_window", 2), soft_cap=0.7)
    expected = one_pair_at_a_time(q, k, v, 2, 0.7)
    assert oracle.relative_error(got[0], expected[0]) < 1e-14
    assert oracle.lse_error(got[1], expected[1]) < 1e-13
    if q_len > kv_len:
        assert np.isneginf(got[1][: q_len - kv_len]).all()
        assert (got[0][: q_len - kv_len] == 0).all()


def test_against_torch_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(oracle, "_MAX_SCORES", 1000)  # several chunks of rows
    q, k, v = (torch.randn(64, h, 16, dtype=torch.float64) for h in (6, 2, 2))
    out, _ = oracle.attend(q, k, v, mask=oracle.mask_of("causal"))
    heads_first = (x.movedim(1, 0)[None] for x in (q, k, v))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *heads_first, is_causal=True, enable_gqa=True
    )
    assert oracle.relative_error(out, expected[0].movedim(0, 1).numpy()) < 1e-14


def test_errors_are_seen() -> None:
    out, lse = np.ones((3, 2, 4)), np.array([[0.0, -np.inf]])
    assert oracle.lse_error(np.array([[0.0, -50.0]]), lse) == math.inf
    assert oracle.lse_error(np.array([[0.1, -np.inf]]), lse) == pytest.approx(0.1)
    assert math.isnan(oracle.lse_error(np.array([[np.nan, -np.inf]]), lse))
    wrong = out.copy()
    wrong[1, 1] *= 1.5
    assert oracle.worst_row_error(wrong, out) == pytest.approx(0.5)
    assert oracle.relative_error(wrong, out) == pytest.approx(0.5 / math.sqrt(6))
