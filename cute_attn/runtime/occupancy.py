"""Resident blocks per SM, from a kernel's resources; no GPU needed.

The rule of the CUDA occupancy calculator. Limits: CUDA C++ Programming Guide, "Compute
Capabilities", tables of technical specifications.
"""

from __future__ import annotations

from dataclasses import dataclass

_WARP = 32
_REGISTERS = 64 << 10  # of an SM, in four equal parts
_PARTS = 4
_REGISTER_UNIT = 256  # registers that a warp gets at a time
_SMEM_UNIT = 128
_SMEM_RESERVED = 1 << 10  # of each block, for the system


@dataclass(frozen=True)
class SMLimits:
    """What an SM holds at most; shared memory in bytes."""

    warps: int
    blocks: int
    smem: int


_LIMITS = {
    "sm_80": SMLimits(64, 32, 164 << 10),
    "sm_86": SMLimits(48, 16, 100 << 10),
    "sm_89": SMLimits(48, 24, 100 << 10),
    "sm_90": SMLimits(64, 32, 228 << 10),
}


@dataclass(frozen=True)
class Occupancy:
    """Blocks of one kernel on one SM.

    Attributes:
        blocks: resident at once.
        warps: of these blocks.
        warp_limit: what the SM holds at most.
        limits: blocks that each resource has room for: "registers", "shared memory", "warps",
            "blocks".
    """

    blocks: int
    warps: int
    warp_limit: int
    limits: dict[str, int]

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that allow no further block."""
        return tuple(name for name, blocks in self.limits.items() if blocks == self.blocks)


def occupancy(arch: str, *, threads: int, registers: int, smem_bytes: int) -> Occupancy:
    """How many blocks of a kernel an SM holds.

    Args:
        arch: of the GPU: "sm_80", "sm_86", "sm_89", "sm_90" or "sm_90a".
        threads: per block.
        registers: per thread at launch (`setmaxnreg` moves them within a block).
        smem_bytes: shared memory per block, static and dynamic.

    Raises:
        ValueError: an unknown architecture, or sizes that no block can have.
    """
    found = _LIMITS.get(arch.rstrip("a"))
    if found is None:
        raise ValueError(f"arch is {arch!r}; known: {', '.join(_LIMITS)}")
    if not 1 <= threads <= 1024:
        raise ValueError(f"threads is {threads}; a block has 1 to 1024")
    if not 1 <= registers <= 255:
        raise ValueError(f"registers is {registers}; a thread has 1 to 255")
    if smem_bytes < 0:
        raise ValueError(f"smem_bytes is {smem_bytes}; at least 0")
    warps = -(-threads // _WARP)
    per_warp = _rounded(registers * _WARP, _REGISTER_UNIT)
    of_registers = _REGISTERS // _PARTS // per_warp * _PARTS // warps
    smem = _rounded(smem_bytes + _SMEM_RESERVED, _SMEM_UNIT)
    limits = {
        "registers": of_registers,
        "shared memory": found.smem // smem,
        "warps": found.warps // warps,
        "blocks": found.blocks,
    }
    blocks = min(limits.values())
    return Occupancy(blocks, blocks * warps, found.warps, limits)


def _rounded(number: int, unit: int) -> int:
    return -(-number // unit) * unit
