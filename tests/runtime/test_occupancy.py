"""Blocks per SM by the rule of the occupancy calculator."""

from __future__ import annotations

import pytest

from cute_attn.runtime.occupancy import occupancy

KB = 1 << 10


@pytest.mark.parametrize(
    ("arch", "threads", "registers", "smem", "blocks", "limited_by"),
    [
        # The CUDA occupancy calculator's own answers.
        ("sm_80", 256, 32, 0, 8, ("registers", "warps")),
        ("sm_80", 128, 255, 65792, 2, ("registers", "shared memory")),
        ("sm_86", 128, 64, 0, 8, ("registers",)),
        ("sm_86", 32, 16, 0, 16, ("blocks",)),
        ("sm_89", 32, 16, 0, 24, ("blocks",)),
        ("sm_90a", 384, 168, 230400, 1, ("registers", "shared memory")),
        ("sm_90", 1024, 64, 0, 1, ("registers",)),
        ("sm_90", 96, 33, 0, 16, ("registers",)),
        ("sm_90", 64, 32, 100 * KB, 2, ("shared memory",)),
        ("sm_80", 64, 32, 163 * KB, 1, ("shared memory",)),
        ("sm_80", 64, 32, 164 * KB, 0, ("shared memory",)),
    ],
)
def test_blocks(
    arch: str, threads: int, registers: int, smem: int, blocks: int, limited_by: tuple[str, ...]
) -> None:
    found = occupancy(arch, threads=threads, registers=registers, smem_bytes=smem)
    assert (found.blocks, found.limited_by) == (blocks, limited_by)
    assert found.warps == blocks * -(-threads // 32) <= found.warp_limit


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"arch": "sm_70"}, "arch is 'sm_70'"),
        ({"threads": 0}, "threads is 0"),
        ({"registers": 256}, "registers is 256"),
        ({"smem_bytes": -1}, "smem_bytes is -1"),
    ],
)
def test_what_cannot_be_is_refused(change: dict[str, object], words: str) -> None:
    given = {"arch": "sm_80", "threads": 128, "registers": 64, "smem_bytes": 0} | change
    with pytest.raises(ValueError, match=words):
        occupancy(**given)  # type: ignore[arg-type]
