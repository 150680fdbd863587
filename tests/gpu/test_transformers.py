"""Models of Transformers with `attn_implementation="cute_attn"` on a GPU, where it is installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from tests.integrations.models import (
    ARCHITECTURES,
    Architecture,
    error_ratio,
    make,
    named,
    tokens,
)

transformers = pytest.importorskip("transformers")
from cute_attn.integrations.transformers import NAME, register  # noqa: E402  # needs it

pytestmark = pytest.mark.gpu

BOUND = 1.2
"""Most that an error may be, of that of eager attention in bf16."""


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    register()
    yield
    del transformers.AttentionInterface._global_mapping[NAME]
    del transformers.AttentionMaskInterface._global_mapping[NAME]


@pytest.mark.parametrize("architecture", ARCHITECTURES, ids=lambda a: a.name)
def test_logits_of_bf16_are_as_good_as_eager(
    architecture: Architecture, device: torch.device, record: Callable[..., None]
) -> None:
    """Teacher-forced: left-padded prefill, then decodes with a cache, past the window."""
    ours, eager = error_ratio(architecture, NAME, device, architecture.head_dim)
    record("G", f"transformers {architecture.name}", err=ours, err_eager=eager)
    assert 0 < ours <= BOUND * eager


@pytest.mark.parametrize("name", ["Llama", "GptOss"])
def test_continuous_batching(name: str, device: torch.device) -> None:
    """Tokens are those of requests alone: prompts, and decodes in the pages of the cache."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    architecture = named(name)
    model: Any = make(architecture, NAME, architecture.head_dim).to(device).bfloat16()
    prompts = [tokens(1, n)[0].tolist() for n in (5, 19, 12)]
    options = {"max_new_tokens": 6, "do_sample": False, "eos_token_id": -1, "pad_token_id": 0}
    found = model.generate_batch(
        prompts,
        generation_config=GenerationConfig(**options),
        continuous_batching_config=ContinuousBatchingConfig(
            page_size=16, num_blocks=16, max_batch_tokens=16
        ),
        progress_bar=False,
    )
    assert len(found) == len(prompts)
    for result in found.values():
        ids = torch.tensor([result.prompt_ids + result.generated_tokens], device=device)
        with torch.inference_mode():
            logits = model(ids[:, :-1]).logits[0, len(result.prompt_ids) - 1 :].float()
        best = logits.max(-1).values
        chosen = logits.gather(1, ids[0, len(result.prompt_ids) :, None])[:, 0]
        # Rounding may turn two tokens that are alike into each other.
        assert (best - chosen <= 0.02 * logits.abs().amax(-1)).all()
