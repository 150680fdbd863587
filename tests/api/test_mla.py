"""Multi-head latent attention on the reference executor, against a dense oracle."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import (
    BatchAttention,
    BatchMLA,
    PagedKV,
    RaggedKV,
    append_paged_mla,
    causal,
    sliding_window,
    soft_cap,
)
from tests.oracle import attend_batch, mask_of

SCALE = 1 / math.sqrt(192)
_PAGE = (Path(__file__).parents[2] / "docs" / "mla.md").read_text()


def indptr(lengths: list[int]) -> list[int]:
    return [0, *np.cumsum(lengths).tolist()]


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


@dataclass
class Latents:
    """A paged cache of latent rows; slots that no key is in hold NaN."""

    rows: list[torch.Tensor]
    cache: torch.Tensor
    kv_format: PagedKV

    @classmethod
    def make(cls, kv_lens: list[int], page: int, dtype: torch.dtype = torch.float32) -> Latents:
        rows = [random(n, 576, seed=i + 1, dtype=dtype) for i, n in enumerate(kv_lens)]
        counts = [-(-n // page) for n in kv_lens]
        order = np.random.default_rng(0).permutation(sum(counts) + 3)
        cache = torch.full((len(order), page, 576), torch.nan, dtype=dtype)
        for begin, own in zip(indptr(counts), rows, strict=False):
            for first in range(0, len(own), page):
                part = own[first : first + page]
                cache[order[begin + first // page], : len(part)] = part
        last = [(n - 1) % page + 1 if n else 0 for n in kv_lens]
        table = order[: sum(counts)].astype(np.int32)
        return cls(rows, cache, PagedKV(indptr(counts), table, last, page))


def oracle(
    q: torch.Tensor,
    rows: list[torch.Tensor],
    q_lens: list[int],
    *,
    is_causal: bool = True,
    scale: float = SCALE,
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Output and log-sum-exp, request by request."""
    keys = [own.double().numpy()[:, None] for own in rows]
    return attend_batch(
        q.double().numpy(),
        indptr(q_lens),
        keys,
        [k[..., :512] for k in keys],
        mask=mask_of("causal" if is_causal else "full"),
        sm_scale=scale,
    )


@pytest.mark.parametrize("page", [1, 16, 64])
@pytest.mark.parametrize("heads", [16, 128])
@pytest.mark.parametrize("is_causal", [True, False])
def test_against_the_oracle(page: int, heads: int, is_causal: bool) -> None:
    q_lens, kv_lens = [1, 4, 0, 2, 3, 1], [1, 129, 5, 64, 3, 0]
    q, latents = random(sum(q_lens), heads, 576), Latents.make(kv_lens, page)
    mla = BatchMLA(
        heads, dtype=torch.float32, variant="causal" if is_causal else "full", device="cpu"
    )
    mla.plan(indptr(q_lens), latents.kv_format)
    out, lse = mla.run(q, latents.cache, return_lse=True)
    want, want_lse = oracle(q, latents.rows, q_lens, is_causal=is_causal)
    np.testing.assert_allclose(out.numpy(), want, atol=3e-5)
    np.testing.assert_allclose(lse.numpy(), want_lse, atol=3e-5)


def test_ragged_rows() -> None:
    q_lens, kv_lens = [2, 1], [70, 33]
    rows = [random(n, 576, seed=i + 1) for i, n in enumerate(kv_lens)]
    q = random(3, 16, 576)
    mla = BatchMLA(16, dtype=torch.float32, device="cpu")
    out = mla.plan(indptr(q_lens), RaggedKV(indptr(kv_lens))).run(q, torch.cat(rows))
    np.testing.assert_allclose(out.numpy(), oracle(q, rows, q_lens)[0], atol=3e-5)


def test_columns_in_two_tensors_give_the_same_bits() -> None:
    q, latents = random(3, 16, 576), Latents.make([40, 17, 65], 16)
    mla = BatchMLA(16, dtype=torch.float32, device="cpu")
    mla.plan([0, 1, 2, 3], latents.kv_format)
    whole = mla.run(q, latents.cache)
    halves = latents.cache[..., :512].contiguous(), latents.cache[..., 512:].contiguous()
    assert torch.equal(mla.run((q[..., :512], q[..., 512:]), halves), whole)


def test_the_scale_is_that_of_heads_before_absorption() -> None:
    """Of 128 + 64 elements, not of 576 (FlashInfer issue 787)."""
    q, latents = random(1, 16, 576), Latents.make([50], 16)
    mla = BatchMLA(16, dtype=torch.float32, device="cpu").plan([0, 1], latents.kv_format)
    default = mla.run(q, latents.cache)
    assert torch.equal(mla.run(q, latents.cache, sm_scale=SCALE), default)
    other = mla.run(q, latents.cache, sm_scale=1 / 24)
    np.testing.assert_allclose(
        other.numpy(), oracle(q, latents.rows, [1], scale=1 / 24)[0], atol=3e-5
    )
    assert not torch.allclose(other, default, atol=1e-3)


def test_a_window() -> None:
    q, latents = random(1, 16, 576), Latents.make([100], 16)
    mla = BatchMLA(16, dtype=torch.float32, device="cpu", variant=causal() & sliding_window())
    mla.plan([0, 1], latents.kv_format, scalars={"window_left": 9})
    want = oracle(q, [latents.rows[0][90:]], [1])[0]
    np.testing.assert_allclose(mla.run(q, latents.cache).numpy(), want, atol=3e-5)


def test_append_then_attend() -> None:
    latents = Latents.make([40, 17], 16)
    empty = torch.full_like(latents.cache, torch.nan)
    rows = torch.cat(latents.rows)
    requests = torch.tensor([0] * 40 + [1] * 17, dtype=torch.int32)
    positions = torch.tensor([*range(40), *range(17)], dtype=torch.int32)
    append_paged_mla(rows, requests, positions, empty, latents.kv_format)
    assert torch.equal(empty.nan_to_num(7), latents.cache.nan_to_num(7))


def test_bad_input_names_the_argument() -> None:
    latents = Latents.make([40], 16)
    q = random(1, 16, 576)
    mla = BatchMLA(16, dtype=torch.float32, device="cpu").plan([0, 1], latents.kv_format)
    for cache, message in (
        (latents.cache[..., :512], "cache has 512 columns; it takes 576"),
        (latents.cache[None], re.escape("it takes (pages, page_size, columns)")),
        ((latents.cache, latents.cache[..., 512:]), "cache[0] has 576 columns"),
        ((latents.cache[..., :512], latents.cache), "cache[1] has 576 columns"),
    ):
        with pytest.raises(ValueError, match=message.replace("cache[", r"cache\[")):
            mla.run(q, cache)
    with pytest.raises(TypeError, match="cache is a list"):
        mla.run(q, [latents.cache])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"q\[1\] has"):
        mla.run((q[..., :512], q), latents.cache)
    with pytest.raises(ValueError, match="num_heads is 0"):
        BatchMLA(0, device="cpu")
    with pytest.raises(ValueError, match="rows has"):
        append_paged_mla(
            q[:, 0, :512], torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32),
            latents.cache, latents.kv_format,
        )  # fmt: skip


def test_batch_attention_takes_a_view_of_the_keys() -> None:
    q, latents = random(1, 16, 576), Latents.make([40], 16)
    batch = BatchAttention(
        16, 1, 576, head_dim_vo=512, dtype=torch.float32, sm_scale=SCALE, device="cpu"
    )
    batch.plan([0, 1], latents.kv_format)
    k = latents.cache.unsqueeze(2)
    want = oracle(q, latents.rows, [1])[0]
    np.testing.assert_allclose(batch.run(q, k, k[..., :512]).numpy(), want, atol=3e-5)
    with pytest.raises(ValueError, match="k has head_dim 100"):
        batch.run(q, k[..., :100], k[..., :512])


def test_on_the_cpu_every_variant_runs() -> None:
    """The executor has no kernel to choose: hooks are as everywhere."""
    q, latents = random(1, 16, 576), Latents.make([40], 16)
    capped = BatchMLA(16, dtype=torch.float32, device="cpu", variant=causal() & soft_cap())
    capped.plan([0, 1], latents.kv_format, scalars={"logits_soft_cap": 5.0})
    assert capped.run(q, latents.cache).isfinite().all()


def test_the_example_of_the_page_runs() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", _PAGE, re.S)
    given: dict[str, Any] = {"device": "cpu"}
    exec(code, given)
    assert given["latent"].shape == (3, 16, 512) and given["lse"].isfinite().all()
    q, cache = given["q"], given["cache"]
    rows = [cache[[7, 0, 2]].flatten(0, 1)[:138], cache[[1, 4]].flatten(0, 1)]
    want = oracle(q, rows, [1, 2])[0]
    np.testing.assert_allclose(given["latent"].float().numpy(), want, atol=2e-2)
