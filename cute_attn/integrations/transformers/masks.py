"""What Transformers says about masks, as a `Step`.

Transformers describes a mask by a function of (batch, head, query, key), composed of a few known
ones, and by a padding mask of (batch, keys). The known functions are recognised and never become
dense; of any other one the dense mask is made and its bits are given to the kernels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from cute_attn.integrations.transformers.name import untraced
from cute_attn.integrations.transformers.steps import (
    CAUSAL,
    Band,
    Step,
    even_step,
    masked_step,
    packed_step,
    padded_step,
)

MaskFunction = Callable[..., Any]


@untraced
def attention_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: MaskFunction | None = None,
    attention_mask: torch.Tensor | Step | None = None,
    **kwargs: Any,
) -> Step | None:
    """The mask of an `AttentionMaskInterface`: a `Step`, or None for plain causal attention.

    A padding mask on a GPU is read on the host, as is the length of a `StaticCache`: the host waits
    for the GPU once per forward pass and kind of layer. No dense mask is made where the pattern is
    causal, a sliding window, bidirectional or packed sequences, with any padding.

    Args:
        batch_size, q_length: sizes of the queries.
        kv_length, kv_offset: keys that layers will give, and the position of the first.
        q_offset: position of the first query.
        mask_function: (batch, head, query, key) -> visible, of positions.
        attention_mask: (batch, positions) bool, False: padding; or what this function has returned.
        kwargs: what else Transformers says; passed on where it makes a dense mask.
    """
    from transformers import masking_utils

    if isinstance(attention_mask, Step):
        return attention_mask
    function = mask_function or masking_utils.causal_mask_function
    band, packed = band_of(function)
    if band is not None and packed is not None and attention_mask is None:
        return packed_step(packed.cpu().numpy().astype(np.int64), band)
    if band is not None and packed is None:
        # Slots of a static cache behind the last query hold nothing yet.
        keys = kv_length if band.right is None else int(q_offset) + q_length - kv_offset
        if attention_mask is None:
            if band == CAUSAL and keys == kv_length:
                return None
            return even_step(batch_size, q_length, keys, band)
        step = padded_step(_valid(attention_mask, kv_offset, keys), q_length, band)
        if step is not None:
            return step
    kwargs.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    dense = masking_utils.sdpa_mask(
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=function,
        attention_mask=attention_mask,
        **kwargs,
    )
    return step_of_dense(dense, batch_size)


def step_of_dense(mask: torch.Tensor, batch: int) -> Step:
    """The step of a four-dimensional mask.

    Args:
        mask: (batch or 1, 1, q_len, keys): bool, True: the query sees the key; or of a float dtype,
            0 where it does, and -inf or nearly so where it does not.
        batch: requests.

    Raises:
        ValueError: the mask is another one for every head, or holds other numbers.
    """
    if mask.dim() != 4 or mask.shape[0] not in (1, batch):
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}; it takes (batch = {batch}, 1, q_len,"
            " keys), or (batch, keys) for padding"
        )
    if mask.shape[1] != 1 and mask.stride(1) != 0:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}; it takes one mask for all heads"
        )
    mask = mask[:, 0].expand(batch, -1, -1)
    if mask.dtype != torch.bool:
        seen = mask == 0
        hidden = mask <= torch.finfo(mask.dtype).min / 2
        if not bool((seen | hidden).all()):
            raise ValueError(
                "attention_mask holds numbers other than 0 and -inf: biases of the scores are not"
                " taken; use attn_implementation='eager' or a variant of cute_attn of your own"
            )
        mask = seen
    return masked_step(mask)


def band_of(function: MaskFunction) -> tuple[Band | None, torch.Tensor | None]:
    """What a mask function of Transformers is made of.

    Returns:
        the band, or None if something unknown is in it; and (batch, length) numbers of packed
        sequences, or None.
    """
    from transformers import masking_utils

    if function is masking_utils.causal_mask_function:
        return CAUSAL, None
    if function is masking_utils.bidirectional_mask_function:
        return Band(), None
    if getattr(function, "__module__", "") != masking_utils.__name__:
        return None, None
    maker = function.__qualname__.partition(".")[0]
    held = _closed_over(function)
    if maker == "sliding_window_overlay":
        return Band(held["sliding_window"] - 1, None), None
    if maker == "sliding_window_bidirectional_overlay":
        return Band(held["sliding_window"], held["sliding_window"]), None
    if maker == "packed_sequence_mask_function":
        return Band(), held["packed_sequence_mask"]
    if maker == "remap_positions_for_packed_sequence":
        return band_of(held["mask_function"])  # distances within a sequence are those of positions
    if maker != "and_masks":
        return None, None
    left: int | None = None
    right: int | None = None
    packed: torch.Tensor | None = None
    for part in held["mask_functions"]:
        band, sequence = band_of(part)
        if band is None:
            return None, None
        left = band.left if left is None else min(left, left if band.left is None else band.left)
        right = (
            band.right if right is None else min(right, right if band.right is None else band.right)
        )
        packed = packed if sequence is None else sequence
    return Band(left, right), packed


def _closed_over(function: MaskFunction) -> dict[str, Any]:
    """Variables of the function around it that a function uses."""
    names, cells = function.__code__.co_freevars, function.__closure__ or ()
    return {name: cell.cell_contents for name, cell in zip(names, cells, strict=True)}


def _valid(mask: torch.Tensor, first: int, keys: int) -> Any:
    """(batch, keys) bool on the host; positions past the mask are padding."""
    if mask.dim() != 2:
        raise ValueError(
            f"attention_mask has shape {tuple(mask.shape)}; it takes (batch, keys), or four"
            " dimensions"
        )
    valid = mask[:, first : first + keys].to(torch.bool).cpu().numpy()
    return np.pad(valid, ((0, 0), (0, keys - valid.shape[1])))
