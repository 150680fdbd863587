"""Masks of Transformers: recognised without being made, or made where they are not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from cute_attn.integrations.transformers.masks import attention_mask, band_of
from cute_attn.integrations.transformers.planned import Scores, attend
from cute_attn.integrations.transformers.steps import CAUSAL, FULL, Band, Step

BATCH, LENGTH, HEADS, DIM = 2, 11, 2, 8


def known() -> dict[str, tuple[Callable[..., Any], Band]]:
    from transformers import masking_utils as m

    return {
        "causal": (m.causal_mask_function, CAUSAL),
        "bidirectional": (m.bidirectional_mask_function, FULL),
        "window": (m.sliding_window_causal_mask_function(4), Band(3, 0)),
        "two-sided": (m.sliding_window_bidirectional_mask_function(4), Band(4, 4)),
    }


def unknown() -> dict[str, Callable[..., Any]]:
    from transformers import masking_utils as m

    either = m.or_masks(m.causal_mask_function, lambda b, h, q, kv: kv < 3)
    return {
        "chunked": m.chunked_causal_mask_function(4, torch.zeros(BATCH, dtype=torch.int64)),
        "or": either,
        "own": lambda b, h, q, kv: (q + kv) % 3 != 0,
    }


def made(function: Callable[..., Any], padding: torch.Tensor | None, **sizes: int) -> Any:
    arguments = {"batch_size": BATCH, "q_length": LENGTH, "kv_length": LENGTH, **sizes}
    return attention_mask(**arguments, mask_function=function, attention_mask=padding)


def check(function: Callable[..., Any], padding: torch.Tensor | None) -> None:
    """Attention with the step is that with the dense mask, in rows that are no padding."""
    from transformers.masking_utils import sdpa_mask

    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(BATCH, HEADS, LENGTH, DIM, generator=generator) for _ in range(3))
    step = made(function, padding) or made(known()["causal"][0], torch.ones(BATCH, LENGTH).bool())
    dense = sdpa_mask(
        BATCH,
        LENGTH,
        LENGTH,
        mask_function=function,
        attention_mask=padding,
        allow_is_causal_skip=False,
    )
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=dense)
    got = attend(step, q, k, v, Scores(None, None, None))
    rows = dense.any(dim=-1)[:, 0]
    if padding is not None:
        rows &= padding
    assert torch.allclose(got[rows], want.transpose(1, 2)[rows], atol=1e-5)


PADDINGS = {
    "none": [[1] * LENGTH] * BATCH,
    "left": [[0] * 4 + [1] * 7, [1] * LENGTH],
    "right": [[1] * 6 + [0] * 5, [1] * 9 + [0] * 2],
    "gaps": [[1, 1, 0, 0, 1, 1, 1, 0, 1, 1, 1], [1] * LENGTH],
}


@pytest.mark.parametrize("padding", ["nothing", *PADDINGS])
def test_known_masks_are_not_made(padding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import masking_utils

    given = torch.tensor(PADDINGS[padding]).bool() if padding in PADDINGS else None
    for function, _ in known().values():
        check(function, given)
    monkeypatch.setattr(masking_utils, "sdpa_mask", None)
    for name, (function, band) in known().items():
        assert band_of(function) == (band, None)
        if padding == "gaps" and name in ("window", "two-sided"):
            continue  # distances over gaps: the one pattern that becomes a mask
        step = made(function, given)
        assert step is None if (name, padding) == ("causal", "nothing") else step.bits is None


@pytest.mark.parametrize("padding", ["nothing", *PADDINGS])
def test_other_masks_are_made(padding: str) -> None:
    given = torch.tensor(PADDINGS[padding]).bool() if padding in PADDINGS else None
    for function in unknown().values():
        assert band_of(function) == (None, None)
        assert made(function, given).bits is not None
        check(function, given)


def test_a_static_cache_is_read_as_far_as_it_is_filled() -> None:
    function = known()["causal"][0]
    step = made(function, None, q_length=1, kv_length=64, q_offset=9)
    assert isinstance(step, Step) and step.kv_len.tolist() == [10, 10]
    step = made(function, None, q_length=3, kv_length=64, q_offset=torch.tensor(9))
    assert step.kv_len.tolist() == [12, 12]
    padding = torch.ones(BATCH, 10, dtype=torch.bool)
    padding[1, :4] = False
    step = made(function, padding, q_length=1, kv_length=64, q_offset=9)
    assert step.kv_len.tolist() == [10, 6]
    assert made(function, step) is step  # made beforehand, by generate()


def test_keys_are_read_where_they_are() -> None:
    """Left padding costs no copy: rows of both layouts become pages of one key."""
    from cute_attn.integrations.transformers.planned import _placed

    padding = torch.tensor(PADDINGS["left"]).bool()
    step = made(known()["causal"][0], padding)
    for x in (
        torch.randn(BATCH, HEADS, LENGTH, DIM),
        torch.randn(BATCH, LENGTH, HEADS, DIM).transpose(1, 2),
    ):
        keys, _, place = _placed(step, x, x)
        assert keys.data_ptr() == x.data_ptr() and place[0] == "tokens"
        for row in range(BATCH):
            for column in range(LENGTH):
                page = row * place[1] + column * place[2]
                assert torch.equal(keys[page, :, 0], x[row, :, column])
