"""The load-balancing scheduler: lengths of a step in, a plan for a persistent grid out.

NumPy only: no torch, no CUDA, nothing about how kernels are written.
"""

from cute_attn.scheduler.batch import Geometry, RequestBatch
from cute_attn.scheduler.constants import BUILT_IN, H200, Constants, Gpu, KernelTimes
from cute_attn.scheduler.cost import DEFAULT_COST, CostModel
from cute_attn.scheduler.decode import DecodeCosts
from cute_attn.scheduler.explain import Explanation, Launch, explain
from cute_attn.scheduler.fit import MeasuredLaunch, Measurement, fit_constants
from cute_attn.scheduler.fixed_pieces import plan_fixed_pieces
from cute_attn.scheduler.level_launches import level_sms
from cute_attn.scheduler.memory import PlanMemory
from cute_attn.scheduler.min_heap import HeapAssignment, plan_min_heap
from cute_attn.scheduler.patterns import pays_by_head
from cute_attn.scheduler.plan import Plan
from cute_attn.scheduler.planner import plan_batch
from cute_attn.scheduler.prices import Prices, prices_of
from cute_attn.scheduler.reads import Reads, reads_of
from cute_attn.scheduler.sharing import worth_sharing
from cute_attn.scheduler.side_by_side import prefill_sms
from cute_attn.scheduler.simulator import (
    Report,
    plan_items,
    simulate,
    simulate_plans,
)
from cute_attn.scheduler.timing import Timing
from cute_attn.scheduler.visits import Visible
from cute_attn.scheduler.workspace import (
    ARRIVALS_BYTES,
    WorkspaceSize,
    max_slots,
    workspace_size,
)

__all__ = [
    "ARRIVALS_BYTES",
    "BUILT_IN",
    "DEFAULT_COST",
    "H200",
    "Constants",
    "CostModel",
    "DecodeCosts",
    "Explanation",
    "Geometry",
    "Gpu",
    "HeapAssignment",
    "KernelTimes",
    "Launch",
    "MeasuredLaunch",
    "Measurement",
    "Plan",
    "PlanMemory",
    "Prices",
    "Reads",
    "Report",
    "RequestBatch",
    "Timing",
    "Visible",
    "WorkspaceSize",
    "explain",
    "fit_constants",
    "level_sms",
    "max_slots",
    "pays_by_head",
    "plan_batch",
    "plan_fixed_pieces",
    "plan_items",
    "plan_min_heap",
    "prefill_sms",
    "prices_of",
    "reads_of",
    "simulate",
    "simulate_plans",
    "workspace_size",
    "worth_sharing",
]
