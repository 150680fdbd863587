"""Exact workspace sizes from capacities, before anything is planned."""

from __future__ import annotations

from dataclasses import dataclass

from cute_attn.abi import PlanLayout

_ALIGNMENT = 256
ARRIVALS_BYTES = 1 << 15
"""Room for an int32 counter per partial slot, of grids of up to 4,097 blocks."""


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

    @property
    def offsets(self) -> tuple[int, int, int]:
        """Byte offsets of arrivals, partial_out and partial_lse in the workspace.

        The arrival counters come first and take `ARRIVALS_BYTES` whatever the kernel, so that
        kernels with other tiles can share a workspace. They are zero between launches.
        """
        return 0, ARRIVALS_BYTES, ARRIVALS_BYTES + _align(self.partial_out)

    @property
    def total(self) -> int:
        """Bytes of the workspace: all but the plan."""
        return self.offsets[2] + _align(self.partial_lse)


def _align(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


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
    if 4 * max_slots(num_blocks) > ARRIVALS_BYTES:
        raise ValueError(f"num_blocks is {num_blocks}; a workspace serves up to 4097")
    rows = max_slots(num_blocks) * tile_q
    return WorkspaceSize(
        plan=4 * PlanLayout(num_blocks, max_requests).size,
        partial_out=4 * rows * head_dim_vo,
        partial_lse=4 * rows,
    )
