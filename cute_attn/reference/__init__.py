"""The CPU reference: executes plans with NumPy, merges states, appends to paged caches."""

from cute_attn.reference.append import Rope, append_paged_kv
from cute_attn.reference.executor import execute
from cute_attn.reference.merge import merge_partials, merge_rows, merge_states

__all__ = [
    "Rope",
    "append_paged_kv",
    "execute",
    "merge_partials",
    "merge_rows",
    "merge_states",
]
