"""Exact workspace sizes from capacities, before anything is planned."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cute_attn.abi import PlanLayout

ALIGNMENT = 256
"""Bytes to which the parts of a workspace are aligned."""
LAUNCHES = 2
"""Attention launches of a step that run side by side, and have counters and slots of their own."""
_COUNTERS_BYTES = 1 << 15  # an int32 per partial slot, of grids of up to 4,097 blocks
ARRIVALS_BYTES = LAUNCHES * _COUNTERS_BYTES
"""Room for the arrival counters of all launches of a step, at the begin of every workspace."""


def max_slots(num_blocks: int) -> int:
    """Most partial-result slots a plan can use.

    A line cut in num_blocks pieces has num_blocks - 1 cuts; a tile with c cuts needs c + 1 slots,
    so no more than two slots per cut.
    """
    return 2 * (num_blocks - 1)


@dataclass(frozen=True)
class WorkspaceSize:
    """Bytes a launch needs, for any batch within the capacities.

    Attributes:
        plan: plan buffer, on the device and pinned on the host.
        partial_out: (slots, tile_q, head_dim_vo) float32.
        partial_lse: (slots, tile_q) float32.
    """

    plan: int
    partial_out: int
    partial_lse: int

    def offsets_of(self, launch: int = 0, before: int = 0) -> tuple[int, int, int]:
        """Byte offsets of arrivals, partial_out and partial_lse in the workspace.

        The arrival counters come first and take `ARRIVALS_BYTES` whatever the kernel, so that
        kernels with other tiles can share a workspace. They are zero between launches.

        Args:
            launch: 0 or 1, of the launches of a step.
            before: bytes of partial results that belong to the launches before it.
        """
        partial_out = ARRIVALS_BYTES + before
        return launch * _COUNTERS_BYTES, partial_out, partial_out + _align(self.partial_out)

    @property
    def partials(self) -> int:
        """Bytes of the partial results."""
        return _align(self.partial_out) + _align(self.partial_lse)

    @property
    def total(self) -> int:
        """Bytes of the workspace of a single launch: all but the plan."""
        return ARRIVALS_BYTES + self.partials


def _align(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


@lru_cache(maxsize=64)
def workspace_size(
    *, num_blocks: int, max_requests: int, tile_q: int, head_dim_vo: int
) -> WorkspaceSize:
    """Workspace of a kernel with `num_blocks` thread blocks for up to `max_requests` requests.

    Raises:
        ValueError: an argument is not positive.
    """
    for name, value in (
        ("num_blocks", num_blocks),
        ("max_requests", max_requests),
        ("tile_q", tile_q),
        ("head_dim_vo", head_dim_vo),
    ):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    if 4 * max_slots(num_blocks) > _COUNTERS_BYTES:
        raise ValueError(f"num_blocks is {num_blocks}; a workspace serves up to 4097")
    rows = max_slots(num_blocks) * tile_q
    return WorkspaceSize(
        plan=4 * PlanLayout(num_blocks, max_requests).size,
        partial_out=4 * rows * head_dim_vo,
        partial_lse=4 * rows,
    )
