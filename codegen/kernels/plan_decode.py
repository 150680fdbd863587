"""The device planner: a kernel that writes the plan of a decode step from lengths on the device.

The plan is, to the bit, what `scheduler.plan_batch` makes of the same lengths, for steps in which
every request has the same number of query tokens, in one query tile. One thread block: it sorts the
requests, lays them on a line, and each thread finds one cut.
"""

from __future__ import annotations

from functools import cache

from cute_attn.abi import Field, ParameterBlock
from cute_attn.codegen.attention_params import page_division
from cute_attn.codegen.kernels.common import TEMPLATES, symbol
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel
from cute_attn.codegen.spec import ARCHS, UnsupportedSpecError, has_dependent_launch

MAX_REQUESTS = 4096
"""Of a step that is planned on the device."""
MAX_BLOCKS = 1023
"""Thread blocks of the plan: each thread finds one cut, and there is a cut more than blocks."""
_BLOCK = 1024  # threads of a block


@cache
def plan_decode_params(*, per_head: bool = False) -> ParameterBlock:
    """Fields of the kernel. Lengths come from `seq_lens`, or from `kv_indptr` (rows of ragged KV,
    or, with `kv_last_page_len`, pages). `per_head`: see `emit_plan_decode`."""
    heads = Field("heads_in_ids", "i32", "KV heads, each with a request of its own")
    return ParameterBlock(
        (
            Field("kv_indptr", "pointer", "(num_requests + 1), or null", "int32_t const"),
            Field("kv_last_page_len", "pointer", "(num_requests), or null", "int32_t const"),
            Field("seq_lens", "pointer", "(num_requests), or null", "int32_t const"),
            Field("plan", "pointer", "the plan, see cute_attn/abi/plan.py", "int32_t"),
            Field("status", "pointer", "(4): fault, request, value of the first fault", "int32_t"),
            Field("block_cost", "i64", "of a KV block; costs are in ns"),
            Field("item_cost", "i64", "of an item beside its KV blocks"),
            Field("partial_cost", "i64", "of writing a partial result"),
            Field("merge_cost", "i64", "of reading it again"),
            Field("merge_ns", "i64", "what a merge adds to the step"),
            Field("num_requests", "i32", ""),
            Field("q_len", "i32", "query tokens of every request"),
            Field("page_size", "i32", "tokens per page"),
            Field("table_stride", "i32", "from request to request, where there are seq_lens"),
            Field("capacity", "i32", "most KV rows, pages, or keys where there are seq_lens"),
            Field("min_piece", "i32", "KV blocks of the shortest piece of a split tile"),
            Field("tile_q", "i32", "packed query rows per tile"),
            Field("tile_kv", "i32", "keys per KV block"),
            Field("tile_magic", "u32", "key / tile_kv == umulhi(key, magic) >> shift"),
            Field("tile_shift", "i32", "see tile_magic; magic 0 means a plain shift"),
            Field("group", "i32", "query heads per KV head"),
            Field("num_kv_heads", "i32", "at most 127"),
            Field("num_blocks", "i32", "thread blocks of the attention kernel"),
            Field("blocks_magic", "u32", "to divide by num_blocks"),
            Field("blocks_shift", "i32", "see blocks_magic"),
            Field("cost_magic", "u32", "to divide by block_cost, which is below 2^31"),
            Field("cost_shift", "i32", "see cost_magic"),
            Field("window_left", "i32", "see the plan's header"),
            Field("window_right", "i32", "see the plan's header"),
            *((heads,) if per_head else ()),
        )
    )


def plan_decode_divisors(tile_kv: int, num_blocks: int, block_cost: int) -> dict[str, int]:
    """The fields with which the kernel divides by these numbers, 1 .. 2^31 - 1."""
    values: dict[str, int] = {}
    for name, number in (("tile", tile_kv), ("blocks", num_blocks), ("cost", block_cost)):
        values[f"{name}_magic"], values[f"{name}_shift"] = page_division(number)
    return values


def planner_threads(num_blocks: int) -> int:
    """Planning threads for a plan of `num_blocks` blocks, 1 .. MAX_BLOCKS; the others write."""
    return _BLOCK // 2 if num_blocks < _BLOCK // 2 else _BLOCK


def emit_plan_decode(
    arch: str,
    *,
    threads: int = _BLOCK // 2,
    writers: int | None = None,
    max_requests: int = MAX_REQUESTS,
    per_head: bool = False,
) -> GeneratedKernel:
    """Generates the kernel; launched as one block.

    Args:
        arch: "sm_80" ... "sm_90a".
        threads: threads that plan, a power of two from 64 to 1024; see `planner_threads`.
        writers: threads that write what others have found; default: up to 1024 in all.
        max_requests: a multiple of `threads`, below 65536.
        per_head: for plans with `heads_in_ids`: every KV head of a request has its own lengths.

    Raises:
        UnsupportedSpecError: unknown arch.
    """
    if arch not in ARCHS:
        reason = f"arch is {arch!r}; known: {', '.join(ARCHS)}"
        raise UnsupportedSpecError("planner kernel", [reason])
    if threads not in (64, 128, 256, 512, 1024):
        raise ValueError(f"threads is {threads}; it takes a power of two from 64 to 1024")
    if writers is None:
        writers = _BLOCK - threads
    if writers % 32 or not 0 <= writers <= _BLOCK - threads:
        raise ValueError(f"writers is {writers}; a multiple of 32 up to {_BLOCK - threads}")
    if max_requests < 1 or max_requests % threads or max_requests >= 1 << 16:
        raise ValueError(f"max_requests is {max_requests}; a multiple of {threads} below 65536")
    params = plan_decode_params(per_head=per_head)
    heads = "_per_head" if per_head else ""
    name = symbol(f"plan_decode_t{threads}{heads}_{arch}", arch, threads, writers, max_requests)
    smem_bytes = _smem_bytes(threads, max_requests)
    text = render(
        TEMPLATES / "plan_decode.cu.jinja",
        name=name,
        params=cpp_struct(params),
        threads=threads,
        writers=writers,
        max_requests=max_requests,
        smem_bytes=smem_bytes,
        per_head=per_head,
        dependent_launch=has_dependent_launch(arch),
    )
    return GeneratedKernel(
        name=name,
        text=text,
        arch=arch,
        threads=threads + writers,
        smem_bytes=smem_bytes,
        blocks_per_sm=1,
        params=params,
        include_dirs=(INCLUDE_DIR,),
        dependent_launch=has_dependent_launch(arch),
    )


def _smem_bytes(threads: int, max_requests: int) -> int:
    """sizeof `PlannerMemory`, which is aligned to 16 bytes."""
    warps = threads // 32
    sort = max(512 * (warps + 2), 8 * threads) + 4 * warps
    sort = -(-(-(-sort // 16) * 16 + 4 * max_requests) // 16) * 16
    per_request = sort + (4 + 4 + 2) * max_requests
    per_cut = (2 * 8 + 3 * 4 + 24) * threads + 8 * 64 + 8
    per_warp = (2 * 8 + 4 + 4) * warps
    lengths = (3 + 1) * 4 * 32
    return -(-(per_request + per_cut + per_warp + lengths) // 16) * 16
