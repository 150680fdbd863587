"""Packing of bits: masks of bool as bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from cute_attn.api import checks
from cute_attn.flashinfer import arguments

_ORDERS = {"big": (128, 64, 32, 16, 8, 4, 2, 1), "little": (1, 2, 4, 8, 16, 32, 64, 128)}


def packbits(x: torch.Tensor, bitorder: str = "big") -> torch.Tensor:
    """Eight elements in a byte, as `numpy.packbits`; the last byte is filled up with zeros.

    Args:
        x: (n,) bool; other types: whether an element is not 0.
        bitorder: "big": the first of eight is the highest bit; "little": the lowest.

    Returns:
        (ceil(n / 8),) uint8.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    checks.one_of("bitorder", bitorder, tuple(_ORDERS))
    flat = arguments.tensor("x", x).reshape(-1) != 0
    padded = torch.nn.functional.pad(flat.to(torch.uint8), (0, -flat.numel() % 8))
    return _bytes(padded, bitorder)


def segment_packbits(
    x: torch.Tensor, indptr: torch.Tensor, bitorder: str = "big"
) -> tuple[torch.Tensor, torch.Tensor]:
    """`packbits` of segments, each of which begins with a byte of its own. Waits for the device.

    Args:
        x: (indptr[-1],) bool.
        indptr: (segments + 1,) int32, elements.
        bitorder: as for `packbits`.

    Returns:
        packed (bytes,) uint8 on the device of x, and (segments + 1,) int32, bytes, on that of
        indptr.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    checks.one_of("bitorder", bitorder, tuple(_ORDERS))
    arguments.tensor("x", x)
    (on_host,) = arguments.to_host(indptr=indptr)
    ends = on_host.numpy().astype(np.int64)
    if ends.size == 0 or ends[0] != 0 or (np.diff(ends) < 0).any() or ends[-1] > x.numel():
        raise ValueError(
            f"indptr is {ends.tolist()[:8]}...; it takes numbers from 0 to {x.numel()}, the"
            " elements of x, that do not decrease"
        )
    begins = np.concatenate(([0], np.cumsum(-(-np.diff(ends) // 8))))
    packed = packed_segments(x.reshape(-1)[: ends[-1]], ends, begins, bitorder)
    return packed, torch.from_numpy(begins.astype(np.int32)).to(indptr.device)


def packed_segments(
    x: torch.Tensor, ends: npt.NDArray[np.int64], begins: npt.NDArray[np.int64], bitorder: str
) -> torch.Tensor:
    """Packs segments of x.

    Args:
        x: (ends[-1],) truth values.
        ends: (segments + 1,) elements, from 0.
        begins: (segments + 1,) bytes, from 0.
        bitorder: "big" or "little".

    Returns:
        (begins[-1],) uint8.
    """
    counts = np.diff(ends)
    truth = (x != 0).to(torch.uint8)
    if not (counts % 8).any():
        return _bytes(truth, bitorder)
    if (counts == counts[0]).all():
        rows = torch.nn.functional.pad(truth.view(counts.size, -1), (0, int(-counts[0] % 8)))
        return _bytes(rows.view(-1), bitorder)
    bits = torch.zeros(8 * int(begins[-1]), dtype=torch.uint8, device=x.device)
    shift = torch.from_numpy(8 * begins[:-1] - ends[:-1]).to(x.device)
    lengths = torch.from_numpy(counts).to(x.device)
    place = torch.repeat_interleave(shift, lengths, output_size=int(ends[-1]))
    place += torch.arange(int(ends[-1]), device=x.device)
    bits[place] = truth
    return _bytes(bits, bitorder)


def _bytes(bits: torch.Tensor, bitorder: str) -> torch.Tensor:
    """(8 n,) zeros and ones as (n,) bytes."""
    worth = torch.tensor(_ORDERS[bitorder], dtype=torch.uint8, device=bits.device)
    return (bits.view(-1, 8) * worth).sum(1, dtype=torch.uint8)
