"""Attention of a mixed batch: a prefill chunk, an append and two decodes over one paged KV cache.

Runs on the GPU if there is one, else on the CPU: the calls are the same.
"""

import torch

from cute_attn import BatchAttention, PagedKV

device = "cuda" if torch.cuda.is_available() else "cpu"
q_len = torch.tensor([100, 7, 1, 1])  # new tokens of each request
kv_len = torch.tensor([100, 300, 512, 33])  # all its tokens, the new ones included
page_size = 16

pages = -(-kv_len // page_size)  # pages per request
kv_indptr = torch.cat([torch.zeros(1, dtype=torch.long), pages.cumsum(0)])
kv_indices = torch.randperm(int(kv_indptr[-1]))  # page numbers, request after request
last_page_len = (kv_len - 1) % page_size + 1
qo_indptr = torch.cat([torch.zeros(1, dtype=torch.long), q_len.cumsum(0)])

num_pages = len(kv_indices)
q = torch.randn(int(qo_indptr[-1]), 32, 128).to(device, torch.bfloat16)
cache = torch.randn(num_pages, 2, page_size, 8, 128).to(device, torch.bfloat16)

batch = BatchAttention(num_qo_heads=32, num_kv_heads=8, head_dim=128, variant="causal")
batch.plan(qo_indptr, PagedKV(kv_indptr, kv_indices, last_page_len, page_size))
out, lse = batch.run(q, cache, return_lse=True)  # once per layer of the model

print(f"{device}: out {tuple(out.shape)}, lse {tuple(lse.shape)}")

# The decode with 33 keys, by hand: page after page, then a softmax.
own = cache[kv_indices[-int(pages[3]) :].to(device)].float()
k, v = (own[:, i].flatten(0, 1)[:33].repeat_interleave(4, 1) for i in (0, 1))  # 4 heads per KV head
scores = torch.einsum("hd,khd->hk", q[-1].float(), k) / 128**0.5
expected = torch.einsum("hk,khd->hd", scores.softmax(-1), v)
error = (out[-1].float() - expected).norm() / expected.norm()
print(f"error of the last request: {error:.1e}")
assert error < 4e-3
