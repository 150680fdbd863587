"""Ragged KV: the keys of all requests in one array, request after request."""

from __future__ import annotations

from typing import Any

from cute_attn.formats.base import KVFormat
from cute_attn.formats.errors import indptr


class RaggedKV(KVFormat):
    """k and v are (kv_tokens, num_kv_heads, head_dim); request i owns rows kv_indptr[i:i+2].

    Args:
        kv_indptr: (num_requests + 1,) integers on the host.

    Raises:
        TypeError, ValueError: not a row pointer.
    """

    def __init__(self, kv_indptr: Any) -> None:
        rows = indptr("kv_indptr", kv_indptr)
        self.kv_start = rows[:-1]
        self.kv_len = rows[1:] - rows[:-1]
        self.num_rows = int(rows[-1])
