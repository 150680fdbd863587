"""What both sides of a launch must agree on: the plan buffer and the parameter block.

Kernels read them through generated C++ accessors, the CPU executor and the simulator through the
NumPy views here. Nothing in this room knows torch, CUDA or the kernels' source.
"""

from cute_attn.abi.params import Field, ParameterBlock
from cute_attn.abi.plan import UNBOUNDED, PlanLayout, PlanView
from cute_attn.abi.work import (
    Item,
    WorkWalker,
    block_items,
    kv_block_range,
    locate_tile,
    num_pieces,
    tile_item,
)

__all__ = [
    "UNBOUNDED",
    "Field",
    "Item",
    "ParameterBlock",
    "PlanLayout",
    "PlanView",
    "WorkWalker",
    "block_items",
    "kv_block_range",
    "locate_tile",
    "num_pieces",
    "tile_item",
]
