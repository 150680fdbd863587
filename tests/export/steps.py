"""Steps for the example of bundles: inputs, and what the oracle makes of them, as files.

`python -m tests.export.steps FOLDER` writes all of them; examples/bundle/step.hpp reads them.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tests import oracle

NUM_KV_HEADS, GROUP, HEAD_DIM, PAGE_SIZE = 8, 4, 128, 16
SM_SCALE = 1 / math.sqrt(HEAD_DIM)
BOUND = 4e-3  # of bf16, as in tests/gpu


@dataclass(frozen=True)
class Step:
    """Causal attention over pages of 16 tokens, 32/8 heads, head_dim 128, bf16.

    Attributes:
        name: of its folder.
        q_lens, kv_lens: tokens of each request.
        schedule: kernel family, or None: the default.
    """

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    schedule: str | None = None

    @property
    def num_pages(self) -> int:
        """Of the cache: some are not used."""
        return sum(-(-n // PAGE_SIZE) for n in self.kv_lens) + 3


_CHUNK_AND_DECODES = (
    (256, *(1,) * 4),
    (3000, *(500 + 137 * i for i in range(4))),
)
STEPS = (
    Step("decode", (1,) * 9, tuple(1 + 251 * i for i in range(9))),
    Step("prefill", (300, 257, 129), (300, 1057, 200)),
    Step("mixed", *_CHUNK_AND_DECODES),
    Step("mixed_merge_kernel", *_CHUNK_AND_DECODES, "ampere_tile"),
)


def write_step(step: Step, folder: Path) -> Path:
    """Writes a step below `folder`; unused pages and rows of the cache are NaN."""
    target = folder / step.name
    target.mkdir(parents=True)
    draw = torch.Generator().manual_seed(len(step.q_lens))
    tokens = sum(step.q_lens)
    q = torch.randn(tokens, NUM_KV_HEADS * GROUP, HEAD_DIM, generator=draw).bfloat16()
    cache = torch.full(
        (2, step.num_pages, PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM), math.nan, dtype=torch.bfloat16
    )
    pages = torch.randperm(step.num_pages, generator=draw)
    table: list[int] = []
    kv_indptr, outs, lses, row = [0], [], [], 0
    for q_len, kv_len in zip(step.q_lens, step.kv_lens, strict=True):
        k, v = torch.randn(2, kv_len, NUM_KV_HEADS, HEAD_DIM, generator=draw).bfloat16()
        own = pages[len(table) : len(table) + -(-kv_len // PAGE_SIZE)].tolist()
        table += own
        kv_indptr.append(len(table))
        for part, rows in enumerate((k, v)):
            for i, page in enumerate(own):
                piece = rows[i * PAGE_SIZE : (i + 1) * PAGE_SIZE]
                cache[part, page, : len(piece)] = piece
        out, lse = oracle.attend(
            q[row : row + q_len], k, v, mask=oracle.mask_of("causal"), sm_scale=SM_SCALE
        )
        outs.append(out)
        lses.append(lse)
        row += q_len
    arrays: dict[str, Any] = {
        "q": q.view(torch.uint16).numpy(),
        "k": cache[0].view(torch.uint16).numpy(),
        "v": cache[1].view(torch.uint16).numpy(),
        "page_table": np.array(table, np.int32),
        "out": np.concatenate(outs).astype(np.float32),
        "lse": np.concatenate(lses).astype(np.float32),
    }
    for name, array in arrays.items():
        (target / f"{name}.bin").write_bytes(array.tobytes())
    numbers: dict[str, Any] = {
        "page_size": [PAGE_SIZE],
        "num_pages": [step.num_pages],
        "num_kv_heads": [NUM_KV_HEADS],
        "sm_scale": [repr(SM_SCALE)],
        "scalars": [],
        "bound": [BOUND],
        "qo_indptr": [0, *accumulate(step.q_lens)],
        "kv_indptr": kv_indptr,
        "kv_last_page_len": [(n - 1) % PAGE_SIZE + 1 for n in step.kv_lens],
        "schedule": [step.schedule] if step.schedule else [],
    }
    lines = (f"{name} {' '.join(map(str, values))}".strip() for name, values in numbers.items())
    (target / "step.txt").write_text("\n".join(lines) + "\n")
    return target


if __name__ == "__main__":
    for each in STEPS:
        print(write_step(each, Path(sys.argv[1])))
