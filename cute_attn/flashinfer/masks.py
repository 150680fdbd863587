"""Custom masks and multi-item scoring: tensors that the variants of `options` read."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from cute_attn.api import checks
from cute_attn.flashinfer import arguments
from cute_attn.flashinfer.quantization import packed_segments

_MOST_BITS = (1 << 31) - 1

IntArray = npt.NDArray[np.int64]


def mask_tensors(
    q_len: IntArray,
    kv_len: IntArray,
    custom_mask: torch.Tensor | None,
    packed_custom_mask: torch.Tensor | None,
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """The tensors of `cute_attn.custom_mask`.

    Args:
        q_len, kv_len: (num_requests,).
        custom_mask: (sum of q_len * kv_len,) bool, the masks of all requests; or None.
        packed_custom_mask: the same in bits, of `segment_packbits(..., bitorder="little")`; it goes
            before custom_mask.
        device: where they are to be.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    bits = q_len * kv_len
    ends = np.concatenate(([0], np.cumsum(bits)))
    begins = np.concatenate(([0], np.cumsum(-(-bits // 8))))
    if 8 * begins[-1] > _MOST_BITS:
        raise ValueError(
            f"the masks of all requests have {8 * begins[-1]} bits; at most {_MOST_BITS} are taken"
        )
    if packed_custom_mask is not None:
        packed = arguments.tensor("packed_custom_mask", packed_custom_mask).reshape(-1)
        if packed.dtype != torch.uint8 or packed.numel() < begins[-1]:
            raise ValueError(
                f"packed_custom_mask has {packed.numel()} elements of {packed.dtype}; it takes"
                f" {begins[-1]} of torch.uint8, each request beginning at one of its own"
            )
    else:
        mask = arguments.tensor("custom_mask", custom_mask).reshape(-1)
        if mask.numel() != ends[-1]:
            raise ValueError(
                f"custom_mask has {mask.numel()} elements; the requests have {ends[-1]} pairs of"
                " query and key"
            )
        packed = packed_segments(mask.to(device), ends, begins, "little")
    rows = np.stack([begins[:-1], kv_len - q_len, kv_len]).astype(np.int32)
    begin, query, keys = torch.from_numpy(rows).to(device, non_blocking=True)
    packed = packed.to(device, non_blocking=True)
    if not packed.numel():
        packed = packed.new_zeros(1)  # nothing is read, but a tensor has an address
    return {"mask_bits": packed, "mask_begin": begin, "mask_query": query, "mask_keys": keys}


def item_tensors(
    prefix_len_ptr: torch.Tensor,
    token_pos_in_items_ptr: torch.Tensor | None,
    token_pos_in_items_len: int,
    requests: int,
    device: torch.device,
) -> dict[str, torch.Tensor]:
    """The tensors of `options.item_mask`.

    Args:
        prefix_len_ptr: (requests,) keys of each prompt, 32 bits.
        token_pos_in_items_ptr: tokens since the last delimiter, 16 bits; 0: is one. Those of
            request i begin at i * token_pos_in_items_len; behind the last ones nothing need be.
        token_pos_in_items_len: of each request, padded.
        requests: their number.
        device: where they are to be.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    prefix = arguments.tensor("prefix_len_ptr", prefix_len_ptr).reshape(-1)
    positions = arguments.tensor("token_pos_in_items_ptr", token_pos_in_items_ptr).reshape(-1)
    if prefix.numel() != requests:
        raise ValueError(f"prefix_len_ptr has {prefix.numel()} elements; it takes {requests}")
    width = token_pos_in_items_len if requests > 1 else positions.numel()
    checks.positive("token_pos_in_items_len", width)
    if positions.numel() > requests * width:
        raise ValueError(
            f"token_pos_in_items_ptr has {positions.numel()} elements; {requests} requests of"
            f" token_pos_in_items_len = {width} take at most {requests * width}"
        )
    table = torch.zeros(requests * width, dtype=torch.int32, device=device)
    table[: positions.numel()] = _int32(positions).to(device)
    return {
        "item_prefix": _int32(prefix).to(device),
        "item_position": table.view(requests, width),
    }


def _int32(x: torch.Tensor) -> torch.Tensor:
    """Unsigned numbers, for which torch has hardly an operation, as int32."""
    if x.dtype == torch.uint16:
        return x.view(torch.int16).to(torch.int32) & 0xFFFF
    return x.view(torch.int32) if x.dtype == torch.uint32 else x.to(torch.int32)


def step_tensors(
    qo_indptr: torch.Tensor,
    kv_len: IntArray,
    masks: tuple[torch.Tensor | None, torch.Tensor | None],
    items: tuple[torch.Tensor | None, torch.Tensor | None, int],
    fixed: FixedTensors | None,
    device: torch.device,
) -> dict[str, torch.Tensor] | None:
    """What the variant of a prefill step reads; None: nothing.

    Args:
        qo_indptr: (num_requests + 1,) on the host.
        kv_len: (num_requests,).
        masks: custom_mask and packed_custom_mask; they go before items.
        items: prefix_len_ptr, token_pos_in_items_ptr and token_pos_in_items_len.
        fixed: memory for captured graphs.
        device: where they are to be.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    prefix, positions, width = items
    if any(mask is not None for mask in masks):
        tensors = mask_tensors(qo_indptr.diff().long().numpy(), kv_len, *masks, device)
    elif prefix is not None:
        tensors = item_tensors(prefix, positions, width, len(kv_len), device)
    else:
        return None
    return tensors if fixed is None else fixed.hold(tensors)


class FixedTensors:
    """Tensors at addresses that do not change, for captured graphs: each plan copies into them.

    Args:
        given: memory of the user, by name of the tensor.
    """

    def __init__(self, given: dict[str, torch.Tensor]) -> None:
        self._held = {name: x.reshape(-1) for name, x in given.items()}

    def hold(self, tensors: dict[str, torch.Tensor]) -> dict[str, Any]:
        """Copies of `tensors`, at the same addresses as the last time.

        Raises:
            ValueError: there is not enough room for one.
        """
        held = {}
        for name, x in tensors.items():
            memory = self._held.setdefault(name, torch.empty_like(x).reshape(-1))
            if memory.numel() < x.numel():
                raise ValueError(
                    f"{name} has {x.numel()} elements; captured graphs have room for"
                    f" {memory.numel()}"
                )
            memory[: x.numel()].copy_(x.reshape(-1), non_blocking=True)
            held[name] = memory if x.dim() == 1 else memory[: x.numel()].reshape(x.shape)
        return held
