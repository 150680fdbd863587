"""`BatchMLAPagedAttentionWrapper` on the reference executor."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.flashinfer.cases import random, workspace

SCALE = 1 / math.sqrt(192)
PAGE = 16


def planned(kv_lens: list[int], q_lens: list[int], *, is_causal: bool, **changed: Any) -> Any:
    counts = [-(-n // PAGE) for n in kv_lens]
    rows = torch.tensor([0, *torch.tensor(q_lens).cumsum(0).tolist()])
    begin = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()])
    wrapper = flashinfer.BatchMLAPagedAttentionWrapper(workspace())
    given = {
        "qo_indptr": rows,
        "kv_indptr": begin,
        "kv_indices": torch.arange(sum(counts), dtype=torch.int32).flip(0),
        "kv_len_arr": torch.tensor(kv_lens),
        "num_heads": 16,
        "head_dim_ckv": 512,
        "head_dim_kpe": 64,
        "page_size": PAGE,
        "causal": is_causal,
        "sm_scale": SCALE,
        "q_data_type": torch.float32,
        "kv_data_type": torch.float32,
    }
    wrapper.plan(**{**given, **changed})
    return wrapper


def tensors(kv_lens: list[int], q_lens: list[int]) -> tuple[torch.Tensor, ...]:
    pages = sum(-(-n // PAGE) for n in kv_lens)
    ckv, kpe = random(2, pages, PAGE, 512), random(3, pages, PAGE, 64)
    return random(0, sum(q_lens), 16, 512), random(1, sum(q_lens), 16, 64), ckv, kpe


@pytest.mark.parametrize("is_causal", [True, False])
def test_against_dense(is_causal: bool) -> None:
    kv_lens, q_lens = [40, 3, 65], [1, 2, 4]
    q_nope, q_pe, ckv, kpe = tensors(kv_lens, q_lens)
    wrapper = planned(kv_lens, q_lens, is_causal=is_causal)
    out, lse = wrapper.run(q_nope, q_pe, ckv, kpe, return_lse=True)
    natural = wrapper.run(q_nope, q_pe, ckv, kpe, return_lse=True, return_lse_base_on_e=True)[1]
    order = list(reversed(range(len(ckv))))
    row = page = 0
    for q_len, kv_len in zip(q_lens, kv_lens, strict=True):
        own = order[page : page + -(-kv_len // PAGE)]
        page += len(own)
        k = torch.cat((ckv[own], kpe[own]), -1).flatten(0, 1)[:kv_len].double()
        q = torch.cat((q_nope, q_pe), -1)[row : row + q_len].double()
        scores = torch.einsum("qhd,kd->qhk", q, k) * SCALE
        if is_causal:
            hidden = torch.arange(kv_len) > torch.arange(q_len)[:, None] + kv_len - q_len
            scores = scores.masked_fill(hidden[:, None], -torch.inf)
        want = torch.softmax(scores, -1) @ k[:, :512]
        torch.testing.assert_close(out[row : row + q_len].double(), want, atol=3e-5, rtol=0)
        logs = torch.logsumexp(scores, -1)
        torch.testing.assert_close(natural[row : row + q_len].double(), logs, atol=3e-5, rtol=0)
        torch.testing.assert_close(
            lse[row : row + q_len].double(), logs / math.log(2), atol=3e-5, rtol=0
        )
        row += q_len


def test_buffers_are_written_also_where_nothing_asks_for_lse() -> None:
    kv_lens, q_lens = [40, 3], [1, 2]
    given = tensors(kv_lens, q_lens)
    wrapper = planned(kv_lens, q_lens, is_causal=True)
    out, lse = wrapper.run(*given, return_lse=True)
    out_buffer, lse_buffer = torch.empty_like(out), torch.empty_like(lse)
    assert wrapper.run(*given, out=out_buffer, lse=lse_buffer) is out_buffer
    assert torch.equal(out_buffer, out) and torch.equal(lse_buffer, lse)
    wrapper.run(*given, lse=lse_buffer, return_lse_base_on_e=True)
    torch.testing.assert_close(lse_buffer * (1 / math.log(2)), lse)


def test_row_pointers_may_be_longer_than_the_requests() -> None:
    kv_lens, q_lens = [40, 3], [1, 2]
    given = tensors(kv_lens, q_lens)
    want = planned(kv_lens, q_lens, is_causal=True).run(*given)
    longer = torch.tensor([0, 3, 4, 99, 7])
    got = planned(kv_lens, q_lens, is_causal=True, kv_indptr=longer).run(*given)
    assert torch.equal(got, want)
    with pytest.raises(ValueError, match="kv_indptr has 2 entries; 2 requests"):
        planned(kv_lens, q_lens, is_causal=True, kv_indptr=torch.tensor([0, 3]))


def test_what_is_not_there_is_refused() -> None:
    kv_lens, q_lens = [40], [1]
    given = tensors(kv_lens, q_lens)
    with pytest.raises(NotImplementedError, match="head_dim_ckv is 256"):
        planned(kv_lens, q_lens, is_causal=True, head_dim_ckv=256)
    with pytest.raises(NotImplementedError, match=r"kv_data_type is torch\.bfloat16"):
        planned(kv_lens, q_lens, is_causal=True, kv_data_type=torch.bfloat16)
    wrapper = planned(kv_lens, q_lens, is_causal=True)
    with pytest.raises(NotImplementedError, match="page_table"):
        wrapper.run(*given, page_table=torch.zeros(1, 1, dtype=torch.int32))
    with pytest.raises(NotImplementedError, match=r"ckv_scale is 2\.0"):
        wrapper.run(*given, ckv_scale=2.0)
    with pytest.raises(ValueError, match="ckv_cache has shape"):
        wrapper.run(given[0], given[1], given[2][0], given[3])
