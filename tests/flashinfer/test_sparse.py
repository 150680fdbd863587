"""Block-sparse patterns against the oracle."""

from __future__ import annotations

import numpy as np
import oracle
import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.flashinfer.cases import check, indptr, int32, random, workspace


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (4, 8), (3, 4)])
def test_blocks(masked: bool, rows: int, columns: int) -> None:
    count, keys = 12, 24
    block_rows, generator = -(-count // rows), np.random.default_rng(0)
    chosen = [np.flatnonzero(generator.random(keys // columns) < 0.5) for _ in range(block_rows)]
    begin = indptr([len(c) for c in chosen])
    indices = int32(*np.concatenate(chosen).tolist())
    mask = torch.from_numpy(generator.random((len(indices), rows, columns)) < 0.7)
    dense = np.zeros((block_rows * rows, keys), bool)
    at = 0
    for i, own in enumerate(chosen):
        for column in own:
            block = mask[at].numpy() if masked else True
            dense[i * rows : (i + 1) * rows, column * columns : (column + 1) * columns] = block
            at += 1
    q, k, v = random(0, count, 4, 64), random(1, keys, 2, 64), random(2, keys, 2, 64)
    wrapper = flashinfer.BlockSparseAttentionWrapper(workspace())
    dtypes = {"q_data_type": torch.float32, "o_data_type": torch.float32}
    sizes = (count, keys, rows, columns, 4, 2, 64)
    wrapper.plan(begin, indices, *sizes, mask=mask if masked else None, **dtypes)
    want = oracle.attend(q, k, v, mask=lambda i, j: dense[i - keys + count, j])
    check(wrapper.run(q, k, v, return_lse=True), want)
    check(wrapper.forward(q, k, v, sm_scale=0.1), oracle.attend(
        q, k, v, mask=lambda i, j: dense[i - keys + count, j], sm_scale=0.1
    ))  # fmt: skip
    with pytest.raises(NotImplementedError, match=r"causal is True; .*: give mask"):
        wrapper.plan(begin, indices, *sizes, causal=True)
    with pytest.raises(NotImplementedError, match="pos_encoding_mode is ROPE_LLAMA"):
        wrapper.plan(begin, indices, *sizes, pos_encoding_mode="ROPE_LLAMA")
    with pytest.raises(ValueError, match=f"N is {keys + 1}; it must be a multiple" if columns > 1
                       else "page"):  # fmt: skip
        bad = indices + (columns == 1) * keys
        wrapper.plan(begin, bad, count, keys + (columns > 1), *sizes[2:], **dtypes)


def test_blocks_of_any_size() -> None:
    heads, group, tokens, keys = 2, 3, 9, 20
    row_sizes = torch.tensor([[4, 5, 0], [1, 2, 6]])
    column_sizes = torch.tensor([[7, 3, 10, 0], [5, 5, 5, 5]])
    pattern = torch.rand(heads, 3, 4, generator=torch.Generator().manual_seed(2)) > 0.4
    pattern[1, 0] = False  # a row that sees nothing
    q, k, v = random(0, 6, tokens, 64), random(1, heads, keys, 64), random(2, heads, keys, 64)
    wrapper = flashinfer.VariableBlockSparseAttentionWrapper(workspace())
    arguments = (row_sizes, column_sizes, heads * group, heads, 64)
    wrapper.plan(pattern, *arguments, q_data_type=torch.float32)
    out, lse = wrapper.run(q, k, v, return_lse=True)
    for head in range(heads * group):
        h = head // group
        dense = pattern[h].repeat_interleave(row_sizes[h], 0).repeat_interleave(column_sizes[h], 1)
        own = (x[h][:, None] for x in (k, v))
        want = oracle.attend(
            q[head][:, None], *own, mask=lambda i, j, d=dense: d.numpy()[i - keys + tokens, j]
        )
        check((out[head][:, None], lse[head][:, None]), want)
    given, logs = torch.empty_like(q), torch.empty_like(lse)
    assert wrapper.run(q, k, v, out=given, lse=logs) is given and torch.equal(given, out)
    assert torch.equal(logs, lse)
    with pytest.raises(ValueError, match=r"block_row_sz adds up to \[9, 10\]"):
        wrapper.plan(pattern, row_sizes + torch.tensor([[0] * 3, [0, 0, 1]]), *arguments[1:])
    with pytest.raises(ValueError, match=r"k has shape \(2, 20, 32\); it takes \(2, tokens, 64\)"):
        wrapper.run(q, k[..., :32], v)
