"""The integers of the cost model for decodes: for `plan_batch`, and what the device planner is
told."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from cute_attn.scheduler.batch import Geometry
from cute_attn.scheduler.cost import CostModel, shortest_piece
from cute_attn.scheduler.each import most


@dataclass(frozen=True)
class DecodeCosts:
    """Costs of a step whose requests have as many query tokens each, in one query tile; ns.

    Attributes:
        block_cost: of a KV block.
        item_cost: of an item beside its KV blocks.
        partial_cost: of writing a partial result.
        merge_cost: of reading one again.
        merge_ns: what a merge adds to the step.
        min_piece: KV blocks of the shortest piece of a split tile.
    """

    block_cost: int
    item_cost: int
    partial_cost: int
    merge_cost: int
    merge_ns: int
    min_piece: int

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, geometry: Geometry, cost: CostModel, q_len: int) -> DecodeCosts:
        """The costs of requests of `q_len` query tokens.

        Raises:
            ValueError: they have more than one query tile.
        """
        rows = q_len * geometry.group
        if not 0 < rows <= geometry.tile_q:
            raise ValueError(
                f"q_len is {q_len}: {rows} packed query rows; a tile has {geometry.tile_q}"
            )
        block_cost = most(cost.block(geometry, 1))
        partial_cost = int(rows * cost.partial_row_ps // 1000)
        return cls(
            block_cost=block_cost,
            item_cost=cost.item(geometry),
            partial_cost=partial_cost,
            merge_cost=int(rows * cost.merge_row_ps // 1000),
            merge_ns=cost.merge_ns,
            min_piece=most(shortest_piece(geometry, partial_cost, block_cost)),
        )
