"""Architecture-neutral kernels: merge of partial results, merge of states and of levels, copies of
query rows, append to a cache, the planner of decode steps, ranges of tensors; and samples of hooks,
which are looked at only.

Each module has an `emit_*` that returns a `GeneratedKernel` and a `*_grid` that says how to launch
it.
"""

from cute_attn.codegen.kernels.append import (
    ROPE_STYLES,
    append_grid,
    append_params,
    emit_append,
    rope_steps,
)
from cute_attn.codegen.kernels.block_ranges import (
    block_ranges_grid,
    emit_block_ranges,
    range_tables,
)
from cute_attn.codegen.kernels.copy_rows import (
    copy_rows_params,
    copy_rows_sizes,
    emit_copy_rows,
)
from cute_attn.codegen.kernels.hook_sample import SAMPLED, emit_hook_sample
from cute_attn.codegen.kernels.merge import emit_merge, merge_grid
from cute_attn.codegen.kernels.merge_rows import (
    emit_merge_rows,
    merge_rows_grid,
    merge_rows_params,
)
from cute_attn.codegen.kernels.merge_states import (
    emit_merge_states,
    merge_states_grid,
    merge_states_params,
)
from cute_attn.codegen.kernels.plan_decode import (
    emit_plan_decode,
    plan_decode_divisors,
    plan_decode_params,
)

__all__ = [
    "ROPE_STYLES",
    "SAMPLED",
    "append_grid",
    "append_params",
    "block_ranges_grid",
    "copy_rows_params",
    "copy_rows_sizes",
    "emit_append",
    "emit_block_ranges",
    "emit_copy_rows",
    "emit_hook_sample",
    "emit_merge",
    "emit_merge_rows",
    "emit_merge_states",
    "emit_plan_decode",
    "merge_grid",
    "merge_rows_grid",
    "merge_rows_params",
    "merge_states_grid",
    "merge_states_params",
    "plan_decode_divisors",
    "plan_decode_params",
    "range_tables",
    "rope_steps",
]
