"""What the planner and the emitters' equations say of a candidate: what its time may come from."""

from __future__ import annotations

from dataclasses import dataclass

from cute_attn.api import dispatch
from cute_attn.api.tune_plan import PlannedStep
from cute_attn.tuning import Candidate


@dataclass(frozen=True)
class Facts:
    """A step with one kernel, by its plan and by its tile; nothing of it was measured.

    Attributes:
        tiles: query tiles.
        split_tiles: of them, those whose keys several thread blocks share.
        rounds: tiles per thread block, of those that run at the same time: waves.
        idle: share of the SMs' time in which blocks wait for the busiest one, by the cost model.
        padding: share of the computed query rows that no query token owns.
        scores: computed, with those of padding and behind masks.
        kv_steps: steps over blocks of keys per SM, in the mean.
        kv_bytes: of K and V, loaded from memory or the L2 cache.
        smem_bytes: of a thread block.
        blocks_per_sm: thread blocks that an SM is to hold.
        warps_per_sm: of them.
        in_flight: bytes of K and V that an SM's copies have on their way while it computes.
    """

    tiles: int
    split_tiles: int
    rounds: float
    idle: float
    padding: float
    scores: int
    kv_steps: float
    kv_bytes: int
    smem_bytes: int
    blocks_per_sm: int
    warps_per_sm: int
    in_flight: int


def facts_of(planned: PlannedStep, candidate: Candidate) -> Facts:
    """What is known of a step with a candidate.

    Args:
        planned: the step on a GPU.
        candidate: the kernel.

    Raises:
        UnsupportedSpecError: this version has no such kernel.
    """
    spec, plan = planned.spec(candidate), planned.plan(candidate)
    tile, step = spec.tile, planned.step
    items = [
        item
        for launch in plan.explain().launches
        for block in launch.blocks
        for item in block.items
    ]
    kv_steps = sum(-(-(item.key_end - item.key_begin) // tile.kv) for item in items)
    in_flight = dispatch.bytes_in_flight(spec)
    assert in_flight is not None  # tables have built-in schedules alone
    rows = sum(count * rows for count, rows in step.packed_rows) * step.num_kv_heads
    return Facts(
        tiles=plan.num_tiles,
        split_tiles=plan.num_split_tiles,
        rounds=plan.num_tiles / plan.layout.num_blocks,
        idle=1 - 1 / plan.imbalance,
        padding=1 - rows / max(plan.num_tiles * tile.q, 1),
        scores=kv_steps * tile.kv * tile.q,
        kv_steps=kv_steps / planned.num_sms,
        kv_bytes=sum(item.kv_bytes for item in items),
        smem_bytes=dispatch.emit(spec).smem_bytes,
        blocks_per_sm=tile.blocks_per_sm,
        warps_per_sm=tile.threads // 32 * tile.blocks_per_sm,
        in_flight=in_flight * tile.blocks_per_sm,
    )
