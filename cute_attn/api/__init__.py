"""The public calls. `cute_attn` re-exports everything here, lazily."""

from cute_attn.api.append import RoPE, append_paged_kv
from cute_attn.api.batch import BatchAttention
from cute_attn.api.dispatch import Problem, choose, supports
from cute_attn.api.kernel import Kernel, build, warmup
from cute_attn.api.one_shot import attention, single_decode, single_prefill
from cute_attn.api.states import merge_states

__all__ = [
    "BatchAttention",
    "Kernel",
    "Problem",
    "RoPE",
    "append_paged_kv",
    "attention",
    "build",
    "choose",
    "merge_states",
    "single_decode",
    "single_prefill",
    "supports",
    "warmup",
]
