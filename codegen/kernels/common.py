"""What the small kernels share: checks, names and the division of rows over threads."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cute_attn.codegen.spec import ARCHS, UnsupportedSpecError

TEMPLATES = Path(__file__).parents[1] / "templates"
ELEMENTS = {"bf16": "cute_attn::bf16", "fp16": "cute_attn::fp16", "fp32": "float"}

_VECTOR = 4  # elements of one load: a float4


@dataclass(frozen=True)
class RowThreads:
    """How the threads of a block are divided over rows.

    Attributes:
        lanes: threads that hold a row together, each `vectors` times four elements.
        vectors: vectors of four elements per thread.
        rows: rows per block.
    """

    lanes: int
    vectors: int
    rows: int

    @property
    def threads(self) -> int:
        return self.lanes * self.rows


def row_threads(head_dim: int, *, threads: int) -> RowThreads:
    """Lanes for rows of `head_dim` elements, in blocks of at most `threads` threads."""
    vectors = head_dim // _VECTOR
    lanes = next(n for n in range(min(32, vectors), 0, -1) if vectors % n == 0)
    return RowThreads(lanes, vectors // lanes, max(1, threads // lanes))


def check(what: str, arch: str, dtype: str, dtypes: tuple[str, ...], dims: dict[str, int]) -> None:
    """Raises `UnsupportedSpecError` unless architecture, dtype and head dims can be generated."""
    reasons = []
    if arch not in ARCHS:
        reasons.append(f"arch is {arch!r}; known: {', '.join(ARCHS)}")
    if dtype not in dtypes:
        reasons.append(f"dtype is {dtype!r}; known: {', '.join(dtypes)}")
    for name, dim in dims.items():
        if dim < 8 or dim > 512 or dim % 8:
            reasons.append(f"{name} is {dim}; it must be a multiple of 8 from 8 to 512")
    if reasons:
        raise UnsupportedSpecError(what, reasons)


def symbol(readable: str, *parts: Any) -> str:
    """Entry symbol: a readable part and a digest of everything that is compiled in."""
    digest = hashlib.sha256(repr(parts).encode()).hexdigest()[:8]
    return f"{readable}_{digest}"
