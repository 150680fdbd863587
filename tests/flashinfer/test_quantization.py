"""Packing of bits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import cute_attn.flashinfer as flashinfer
from tests.flashinfer.cases import indptr, int32


@pytest.mark.parametrize("order", ["big", "little"])
def test_bits(order: str) -> None:
    x = torch.rand(61, generator=torch.Generator().manual_seed(0)) > 0.5
    packed = flashinfer.packbits(x, order)
    assert packed.numpy().tolist() == np.packbits(x.numpy(), bitorder=order).tolist()
    for lengths in ([13, 0, 8, 40], [16, 8, 0, 32], [20, 20, 20]):
        parts, begin = flashinfer.segment_packbits(x, indptr(lengths), order)
        assert begin.dtype == torch.int32
        for i, part in enumerate(x[: sum(lengths)].split(lengths)):
            own = parts[begin[i] : begin[i + 1]]
            assert torch.equal(own, flashinfer.packbits(part, order))
    with pytest.raises(ValueError, match="bitorder is 'middle'"):
        flashinfer.packbits(x, "middle")
    with pytest.raises(ValueError, match="numbers from 0 to 61"):
        flashinfer.segment_packbits(x, int32(0, 62))
