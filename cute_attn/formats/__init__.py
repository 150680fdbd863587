"""Formats of the KV cache: ragged, paged (CSR or padded tables) and block-sparse rows.

Each one is checked when it is made and then says for every request how many keys it has and where
they are (not so `DeviceKV`, whose numbers only the device reads). NumPy only; tensors are taken as
they come, without importing torch.
"""

from cute_attn.formats.base import KVFormat, QueryRows
from cute_attn.formats.block_sparse import BlockSparseKV
from cute_attn.formats.device import DeviceKV
from cute_attn.formats.gather import as_numpy, gather_kv
from cute_attn.formats.levels import Level, LevelsKV
from cute_attn.formats.paged import BlockTableKV, PagedKV
from cute_attn.formats.per_head import PerHeadKV
from cute_attn.formats.radix import Radix, from_radix, to_radix
from cute_attn.formats.ragged import RaggedKV
from cute_attn.formats.views import (
    KVViews,
    Strides,
    element_strides,
    kv_views,
    paged_views,
    ragged_views,
)

__all__ = [
    "BlockSparseKV",
    "BlockTableKV",
    "DeviceKV",
    "KVFormat",
    "KVViews",
    "Level",
    "LevelsKV",
    "PagedKV",
    "PerHeadKV",
    "QueryRows",
    "Radix",
    "RaggedKV",
    "Strides",
    "as_numpy",
    "element_strides",
    "from_radix",
    "gather_kv",
    "kv_views",
    "paged_views",
    "ragged_views",
    "to_radix",
]
