"""Kernels that small models of Transformers take on a GPU; the models are `tests.integrations`'."""

from __future__ import annotations

from cute_attn import (
    KernelSpec,
    Problem,
    Variant,
    attention_sinks,
    causal,
    choose,
    sliding_window,
    soft_cap,
)
from tests.integrations.models import ARCHITECTURES, KV_HEADS, QO_HEADS

GROUP = QO_HEADS // KV_HEADS
_WINDOW = causal() & sliding_window()
VARIANTS: dict[str, tuple[Variant, ...]] = {
    "Llama": (causal(),),
    "Qwen2": (causal(),),
    "Qwen3": (causal(), _WINDOW),
    "Gemma2": (causal() & soft_cap(), _WINDOW & soft_cap()),
    "Gemma3": (causal(), _WINDOW),
    "GptOss": (causal() & attention_sinks(), _WINDOW & attention_sinks()),
}
"""Of the layers of an architecture."""
PROMPT = 29
"""Tokens."""
PAGES: dict[str, tuple[int | None, ...]] = {"Llama": (1, 16, None), "GptOss": (1, 16, None)}
"""Left padding reads the cache as pages of one key; continuous batching has pages of 16, and
gathers what windows and prompts see."""


def kernels(arch: str) -> list[KernelSpec]:
    """Of prefill and of decode."""
    found = []
    for architecture in ARCHITECTURES:
        dim = architecture.head_dim
        for variant in VARIANTS[architecture.name]:
            for page_size in PAGES.get(architecture.name, (1,)):
                problem = Problem(arch, "bf16", dim, dim, GROUP, variant, page_size)
                found += [
                    choose(problem, rows=PROMPT * GROUP, tiles_per_sm=1),
                    choose(problem, rows=GROUP, tiles_per_sm=1),
                    choose(problem, rows=16, tiles_per_sm=1),  # a few tokens
                ]
    return list(dict.fromkeys(found))
