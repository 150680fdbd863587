"""Transformers with `attn_implementation="cute_attn"`, on the CPU executor: logits, generation,
continuous batching."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from cute_attn.integrations.transformers import NAME, batching, layer, register
from tests.integrations.models import (
    ARCHITECTURES,
    WINDOW,
    Architecture,
    error_ratio,
    left_padding,
    make,
    named,
    tokens,
)

BOUND = 1.2
"""Most that an error may be, of that of eager attention in bf16."""


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    import transformers

    mine = transformers.AttentionInterface._global_mapping
    masks = transformers.AttentionMaskInterface._global_mapping
    assert register() == register() == NAME
    yield
    del mine[NAME], masks[NAME]


def logits(model: Any, implementation: str, *args: Any, **kwargs: Any) -> torch.Tensor:
    model.set_attn_implementation(implementation)
    with torch.inference_mode():
        result: torch.Tensor = model(*args, **kwargs).logits
    return result


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_logits_of_bf16_are_as_good_as_eager(architecture: Architecture) -> None:
    """Teacher-forced: left-padded prefill, then decodes with a cache, past the window."""
    ours, eager = error_ratio(architecture, NAME, "cpu", 16)
    assert 0 < ours <= BOUND * eager


PADDING = {
    "none": None,
    "left": left_padding((12, 5, 9), 12),
    "right": left_padding((12, 5, 9), 12).flip(1),
    "empty": left_padding((12, 0, 9), 12),
    "gaps": left_padding((12, 9, 9), 12) * torch.tensor([1, 1, 1, 1, 1, 0, 0, 1, 1, 1, 1, 1]),
}


@pytest.mark.parametrize("name", ["Llama", "Gemma2", "GptOss"])
def test_padding_of_any_kind(name: str) -> None:
    model, ids = make(named(name), "eager"), tokens(3, 12)
    for kind, mask in PADDING.items():
        expected = logits(model, "eager", ids, attention_mask=mask)
        got = logits(model, NAME, ids, attention_mask=mask)
        seen = slice(None) if mask is None else mask.bool()
        assert got.isfinite().all()
        assert torch.allclose(got[seen], expected[seen], atol=1e-4), kind


@pytest.mark.parametrize("rows", [1, 2])
def test_padding_free_batches(rows: int) -> None:
    """Sequences one after the other, told apart by their positions, or by row pointers."""
    model, ids = make(named("Gemma3"), "eager"), tokens(rows, 23)
    positions = torch.cat([torch.arange(n) for n in (9, 4, 10)]).expand(rows, -1)
    options = {"position_ids": positions, "use_cache": False}
    got = logits(model, NAME, ids, **options)
    assert torch.allclose(got, logits(model, "eager", ids, **options), atol=1e-4)
    if rows == 1:
        pointer = torch.tensor([0, 9, 13, 23], dtype=torch.int32)
        options |= {"cu_seq_lens_q": pointer, "cu_seq_lens_k": pointer}
        options["attention_mask"] = {"full_attention": None, "sliding_attention": None}
        assert torch.allclose(logits(model, NAME, ids, **options), got, atol=1e-5)


def test_masks_of_four_dimensions() -> None:
    model, ids = make(named("Llama"), "eager"), tokens(2, 12)
    seen = torch.rand(2, 1, 12, 12, generator=torch.Generator().manual_seed(0)) < 0.6
    seen |= torch.eye(12, dtype=torch.bool)
    additive = torch.where(seen, 0.0, torch.finfo(torch.float32).min)
    expected = logits(model, "eager", ids, attention_mask=additive)
    for mask in (additive, seen, additive.clamp(min=-torch.inf)):
        assert torch.allclose(logits(model, NAME, ids, attention_mask=mask), expected, atol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_generate_gives_the_tokens_of_eager(name: str, cache: str) -> None:
    model, ids, mask = make(named(name), "eager"), tokens(3, 10), left_padding((10, 3, 7), 10)
    options = {"max_new_tokens": 8, "do_sample": False, "cache_implementation": cache}
    found = []
    for implementation in ("eager", NAME):
        model.set_attn_implementation(implementation)
        found.append(model.generate(ids, attention_mask=mask, **options))
    assert torch.equal(*found)


@pytest.mark.parametrize("name", ["Llama", "GptOss"])
def test_continuous_batching(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Full attention decodes in the pages of the cache; sliding windows are gathered."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    calls = {"pages": 0, "tables": 0, "gathered": 0, "lengths": 0}

    def counted(module: Any, function: str, what: str) -> None:
        original = getattr(module, function)

        def call(*args: Any, **kwargs: Any) -> Any:
            calls[what] += 1
            return original(*args, **kwargs)

        monkeypatch.setattr(module, function, call)

    counted(layer, "decode_pages", "pages")
    counted(batching, "BlockTableKV", "tables")
    counted(layer, "lengths_of", "gathered")
    counted(batching, "ragged_step", "lengths")
    model = make(named(name), "eager")
    prompts = [tokens(1, n)[0].tolist() for n in (5, 19, 12)]
    expected = {
        tuple(p): model.generate(torch.tensor([p]), max_new_tokens=6, do_sample=False)[0, len(p) :]
        for p in prompts
    }
    model.set_attn_implementation(NAME)
    found = model.generate_batch(
        prompts,
        generation_config=GenerationConfig(
            max_new_tokens=6, do_sample=False, eos_token_id=-1, pad_token_id=0
        ),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=16, num_blocks=16, max_batch_tokens=16
        ),
        progress_bar=False,
    )
    assert len(found) == len(prompts)
    for result in found.values():
        assert result.generated_tokens == expected[tuple(result.prompt_ids)].tolist()
    # Lengths and tables are read once for the two layers, but those of windows are their own.
    if name == "Llama":
        assert calls["pages"] == 2 * calls["tables"] > 0
        assert 2 * calls["lengths"] == calls["gathered"] > 0
    else:
        assert calls["pages"] == 0 and calls["lengths"] == calls["gathered"] > 0
    assert model.config._attn_implementation == NAME


def test_other_implementations_are_left_alone() -> None:
    from transformers.generation.continuous_batching import continuous_api

    requested = continuous_api.is_flash_attention_requested
    assert requested(requested_attention_implementation=NAME)
    assert requested(requested_attention_implementation="flash_attention_3", version=3)
    assert not requested(requested_attention_implementation="sdpa")


def test_what_is_not_taken_says_so() -> None:
    model, ids = make(named("Llama"), NAME), tokens(2, 6)
    with pytest.raises(RuntimeError, match=r"query requires grad, .* attn_implementation='sdpa'"):
        model(ids)
    bias = torch.full((2, 1, 6, 6), -0.5)
    heads = torch.ones(2, 4, 6, 6, dtype=torch.bool)
    refused = {
        "attention_mask holds numbers other than 0 and -inf": {"attention_mask": bias},
        "attention_mask has shape .* one mask for all heads": {"attention_mask": heads},
        r"attention_mask has shape \(3, 1, 6, 6\)": {"attention_mask": torch.ones(3, 1, 6, 6)},
    }
    for message, options in refused.items():
        with pytest.raises(ValueError, match=message):
            logits(model, NAME, ids, **options)
    q, k = torch.zeros(1, 4, 3, 16), torch.zeros(1, 2, 3, 16)
    for name, value in (("dropout", 0.1), ("position_bias", q), ("output_attentions", True)):
        with pytest.raises(ValueError, match=f"{name} is"):
            layer.attention_forward(model.model.layers[0].self_attn, q, k, k, **{name: value})


def test_window_without_a_mask() -> None:
    """Of a layer that is called by itself: the argument counts, and the module's `is_causal`."""
    module = torch.nn.Module()
    q, k = torch.randn(1, 4, 20, 16), torch.randn(1, 2, 20, 16)
    distance = torch.arange(20)[:, None] - torch.arange(20)
    for causal, seen in (
        (True, (distance >= 0) & (distance < WINDOW)),
        (False, torch.ones(20, 20, dtype=torch.bool)),
    ):
        module.is_causal = causal
        got, weights = layer.attention_forward(
            module, q, k, k, None, sliding_window=WINDOW if causal else None, scaling=0.3
        )
        want = torch.nn.functional.scaled_dot_product_attention(
            q, k, k, attn_mask=seen, scale=0.3, enable_gqa=True
        )
        assert weights is None
        assert torch.allclose(got, want.transpose(1, 2), atol=1e-5)
