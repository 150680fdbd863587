"""The reciprocal inside of `sigmoid_approx`, step by step in float32."""

from __future__ import annotations

import re

import numpy as np

from cute_attn.codegen.source import INCLUDE_DIR

HEADER = (INCLUDE_DIR / "cute_attn" / "hook_functions.hpp").read_text()
STATED = 1.4e-4


def error(guess_bits: int) -> float:
    """Largest relative error over what 1 + 2^x can be, x up to the limit of the header."""
    fine, wide = np.linspace(1, 4, 300_001), np.exp2(np.linspace(0, 125, 100_001))
    d = np.concatenate([fine, wide]).astype(np.float32)
    guess = (np.int32(guess_bits) - d.view(np.int32)).view(np.float32)
    assert (guess >= np.finfo(np.float32).tiny).all(), "a denormal, which the kernels flush"
    rest = (1 - d.astype(np.float64) * guess).astype(np.float32)  # fused multiply-adds
    cubic = (rest.astype(np.float64) * rest + rest).astype(np.float32)
    got = (guess.astype(np.float64) * cubic + guess).astype(np.float32)
    return float(np.abs(got.astype(np.float64) * d - 1).max())


def test_the_reciprocal_is_as_good_as_stated() -> None:
    (constant,) = re.findall(r"kGuess = (0x[0-9a-f]{8});", HEADER)
    assert '"f"(125.f)' in HEADER
    found = error(int(constant, 16))
    assert 1.2e-4 < found < STATED
    # The best constant, to a thousandth of its range.
    assert all(error(int(constant, 16) + step) > found for step in (-(1 << 14), 1 << 14))
