"""Packs masks into bits, for `custom_mask`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def pack_masks(masks: Sequence[Any]) -> dict[str, npt.NDArray[Any]]:
    """The tensors of `custom_mask`, as arrays.

    Args:
        masks: of each request (q_len, kv_len) truth values, True: the query sees the key.

    Raises:
        ValueError: a mask has not two dimensions, or they have 2^31 pairs or more.
    """
    arrays = [np.asarray(mask) != 0 for mask in masks]
    for i, mask in enumerate(arrays):
        if mask.ndim != 2:
            raise ValueError(f"masks[{i}] has shape {mask.shape}; it takes (q_len, kv_len)")
    parts = [np.packbits(mask.reshape(-1), bitorder="little") for mask in arrays]
    parts.append(np.zeros(0 if any(part.size for part in parts) else 1, np.uint8))
    ends = np.cumsum([part.size for part in parts], dtype=np.int64)
    if ends[-1] >= 1 << 28:
        raise ValueError(f"masks have {8 * ends[-1]} pairs; 2^31 - 1 fit")
    q_len, kv_len = (np.array([mask.shape[i] for mask in arrays], np.int32) for i in range(2))
    return {
        "mask_bits": np.concatenate(parts),
        "mask_begin": np.r_[0, ends[:-2]].astype(np.int32),
        "mask_query": kv_len - q_len,
        "mask_keys": kv_len,
    }
