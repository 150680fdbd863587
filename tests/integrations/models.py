"""Small models with random weights, of the architectures that differ in their attention."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Architecture:
    """A model class of Transformers and what its configuration adds to the common one.

    Attributes:
        name: of the classes, without `ForCausalLM` and `Config`.
        head_dim: elements of a head on a GPU; on the CPU they have 16.
        options: of the configuration.
        config: name of the configuration class, where it is another one.
    """

    name: str
    head_dim: int
    options: dict[str, Any] = field(default_factory=dict)
    config: str = ""


WINDOW = 8
QO_HEADS, KV_HEADS = 4, 2
CAP = 4.0

ARCHITECTURES = (
    Architecture("Llama", 64),
    Architecture("Qwen2", 64),
    Architecture(
        "Qwen3",
        128,
        {"use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    ),
    Architecture(
        "Gemma2",
        256,
        {
            "sliding_window": WINDOW,
            "attn_logit_softcapping": CAP,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Architecture(
        "Gemma3",
        256,
        {
            "sliding_window": WINDOW,
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
        "Gemma3TextConfig",
    ),
    Architecture(
        "GptOss",
        64,
        {
            "sliding_window": WINDOW,
            "num_local_experts": 2,
            "num_experts_per_tok": 2,  # a choice among them would turn rounding into other results
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
)


def named(name: str) -> Architecture:
    """The architecture of this name."""
    (found,) = (a for a in ARCHITECTURES if a.name == name)
    return found


def make(architecture: Architecture, implementation: str, head_dim: int = 16) -> Any:
    """A float32 model in evaluation mode, on the CPU, the same weights at every call."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    config = getattr(transformers, architecture.config or f"{architecture.name}Config")(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=QO_HEADS,
        num_key_value_heads=KV_HEADS,
        head_dim=head_dim,
        max_position_embeddings=256,
        initializer_range=0.15,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=None,
        tie_word_embeddings=False,
        **architecture.options,
    )
    config._attn_implementation = implementation
    torch.manual_seed(0)
    model = getattr(transformers, f"{architecture.name}ForCausalLM")(config).eval()
    for name, weight in model.named_parameters():
        if name.endswith("sinks"):
            torch.nn.init.normal_(weight)
    return model


def tokens(batch: int, length: int, device: torch.device | str = "cpu") -> torch.Tensor:
    """(batch, length) random token ids."""
    generator = torch.Generator().manual_seed(1)
    return torch.randint(2, 97, (batch, length), generator=generator).to(device)


def left_padding(
    lengths: tuple[int, ...], length: int, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """(batch, length) int64, 0 in front of the last `lengths[i]` of row i."""
    mask = torch.zeros(len(lengths), length, dtype=torch.int64, device=device)
    for row, n in enumerate(lengths):
        mask[row, length - n :] = 1
    return mask


def teacher_forced(model: Any, ids: torch.Tensor, mask: torch.Tensor, prefill: int) -> torch.Tensor:
    """Logits of every token that is no padding, (tokens, vocabulary) float64: those of a prefill,
    then of one given token after the other with a cache."""
    from transformers import DynamicCache

    cache, logits = DynamicCache(config=model.config), []
    ends = [prefill, *range(prefill + 1, ids.shape[1] + 1)]
    begin = 0
    with torch.inference_mode():
        for end in ends:
            positions = (mask[:, :end].cumsum(1) - 1).clamp(min=0)[:, begin:]
            out = model(
                ids[:, begin:end],
                attention_mask=mask[:, :end],
                position_ids=positions,
                cache=cache,
                use_cache=True,
            )
            logits.append(out.logits[mask[:, begin:end].bool()].double())
            begin = end
    return torch.cat(logits)


def error_ratio(
    architecture: Architecture, implementation: str, device: torch.device | str, head_dim: int
) -> tuple[float, float]:
    """Errors of bf16 logits, of an implementation and of eager attention: relative, in the
    Euclidean norm, to float32 eager attention with the same weights."""
    ids, mask = tokens(4, 32, device), left_padding((32, 17, 25, 7), 32, device)
    model = make(architecture, "eager", head_dim).to(device)
    model = model.bfloat16().float()
    exact = teacher_forced(model, ids, mask, 29)
    model = model.bfloat16()
    eager = teacher_forced(model, ids, mask, 29)
    model.set_attn_implementation(implementation)
    ours = teacher_forced(model, ids, mask, 29)
    norm = exact.norm()
    return float((ours - exact).norm() / norm), float((eager - exact).norm() / norm)
