"""The parameter block of the attention kernels, and of the merge that follows them."""

from __future__ import annotations

from cute_attn.abi import Field, ParameterBlock
from cute_attn.codegen.ranges import table_field
from cute_attn.codegen.scalars import scalar_field
from cute_attn.variants import Tensor, Variant

_ROWS = (
    Field("q", "pointer", "(q_tokens, qo_heads, head_dim_qk)", "Element const"),
    Field("out", "pointer", "(q_tokens, qo_heads, head_dim_vo)", "Element"),
    Field("lse", "pointer", "(q_tokens, qo_heads), natural log; null if not wanted", "float"),
    Field("plan", "pointer", "plan buffer, see work.hpp", "int32_t const"),
    Field("partial_out", "pointer", "(slots, tile_q, head_dim_vo)", "float"),
    Field("partial_lse", "pointer", "(slots, tile_q), base 2", "float"),
    Field("q_token_stride", "i64", "elements"),
    Field("q_head_stride", "i64", "elements"),
    Field("out_token_stride", "i64", "elements"),
    Field("out_head_stride", "i64", "elements"),
)

_KV_POINTERS = (
    Field("k", "pointer", "(kv_tokens, kv_heads, head_dim_qk), or (pages, ...)", "Element const"),
    Field("v", "pointer", "(kv_tokens, kv_heads, head_dim_vo), or (pages, ...)", "Element const"),
    Field("k_page_stride", "i64", "elements; 0 for ragged KV"),
    Field("k_token_stride", "i64", "elements"),
    Field("k_head_stride", "i64", "elements"),
    Field("v_page_stride", "i64", "elements; 0 for ragged KV"),
    Field("v_token_stride", "i64", "elements"),
    Field("v_head_stride", "i64", "elements"),
)

_Q_MAP = Field("q_map", "tensor_map", "(head_dim_qk, qo_heads, q_tokens)")
_Q_POINTER = ("q", "q_token_stride", "q_head_stride")

_TENSOR_MAPS = (
    Field("k_map", "tensor_map", "(head_dim_qk, rows of a page, kv_heads, pages)"),
    Field("v_map", "tensor_map", "(head_dim_vo, rows of a page, kv_heads, pages)"),
)

_PAGES = (
    Field("page_table", "pointer", "page numbers of all requests", "int32_t const"),
    Field("num_pages", "i32", "pages in the pool"),
    Field("page_size", "i32", "tokens per page"),
    Field("page_magic", "u32", "token / page_size == umulhi(token, magic) >> shift"),
    Field("page_shift", "i32", "see page_magic; magic 0 means a plain shift"),
)

_TMA_BOX = (Field("box_rows", "i32", "KV rows per TMA box: gcd(page_size, tile_kv)"),)

# Instead of _TENSOR_MAPS and _TMA_BOX where boxes hold all columns.
_GROUP_MAPS = (
    Field("k_map", "tensor_map", "(64, rows, head_dim_qk / 64, kv_heads, groups of eight rows)"),
    Field("v_map", "tensor_map", "(64, rows, head_dim_vo / 64, kv_heads, groups of eight rows)"),
)
_GROUP_BOX = (
    Field("box_rows", "i32", "KV rows per TMA box: gcd(page_size, tile_kv), or 8"),
    Field("k_page_groups", "i32", "groups of eight rows from a page of K to the next, or 0"),
    Field("v_page_groups", "i32", "the same of V"),
)

_COMMON = (
    Field("num_kv_heads", "i32", "KV heads"),
    Field("sm_scale", "f32", "softmax scale, times a factor of the logits hook"),
    Field("scale_log2", "f32", "to base-2 exponents: log2(e), times sm_scale without a hook"),
)


_BESIDE = Field("beside", "i32", "1: runs beside the launch before it, rather than after it")
_ARRIVALS = Field(
    "arrivals", "pointer", "(slots), pieces of a tile that are done; 0 between launches", "int32_t"
)

_TRACE = (
    Field("trace_words", "pointer", "time stamps, see trace.hpp", "uint64_t"),
    Field("trace_items", "i32", "items of a block that they have room for"),
)


_V_SCALE = (Field("e4m3_v_scale", "f32", "factor of the values"),)


def attention_params(
    *,
    tma: bool,
    paged: bool,
    variant: Variant,
    fused_merge: bool = False,
    q_tma: bool = False,
    by_groups: bool = False,
    beside: bool = False,
    trace: bool = False,
    v_scale: bool = False,
) -> ParameterBlock:
    """Fields of an attention kernel.

    Args:
        tma: K and V come through tensor maps rather than pointers and strides.
        paged: there is a page table.
        variant: its scalars are appended under their own names, then its tensors, then tables of
            their ranges.
        fused_merge: the last piece of a split tile merges all of them.
        q_tma: Q comes through a tensor map rather than pointer and strides.
        by_groups: tensor maps of paged K and V count groups of eight rows.
        beside: the kernel may run beside the launch before it.
        trace: the kernel writes time stamps.
        v_scale: values have a factor; that of scores is in the softmax scale.
    """
    rows: tuple[Field, ...] = (*_ROWS[:6], _ARRIVALS, *_ROWS[6:]) if fused_merge else _ROWS
    if q_tma:
        rows = (_Q_MAP, *(f for f in rows if f.name not in _Q_POINTER))
    maps, box = (_GROUP_MAPS, _GROUP_BOX) if by_groups else (_TENSOR_MAPS, _TMA_BOX)
    fields = (maps if tma else ()) + rows + (() if tma else _KV_POINTERS)
    fields += (_PAGES if paged else ()) + (box if tma and paged else ()) + _COMMON
    fields += (_BESIDE,) if beside else ()
    fields += _V_SCALE if v_scale else ()
    fields += _TRACE if trace else ()
    return ParameterBlock((*fields, *_variant_fields(variant)))


_OWN = {
    field.name
    for group in (_ROWS, _KV_POINTERS, _TENSOR_MAPS, _PAGES, _GROUP_BOX, _COMMON, _V_SCALE, _TRACE)
    for field in (*group, _Q_MAP, _BESIDE, _ARRIVALS)
}


def _variant_fields(variant: Variant) -> tuple[Field, ...]:
    fields = [scalar_field(s) for s in variant.scalars]
    fields += [field for t in variant.tensors for field in tensor_fields(t)]
    if variant.block_test is not None:
        fields += map(table_field, variant.block_test.tables)
    if taken := sorted(_OWN & {field.name for field in fields}):
        raise ValueError(
            f"variant {variant.name!r} has a parameter {taken[0]!r}, as kernels have one; rename it"
        )
    return tuple(fields)


_ELEMENTS = {
    "f32": "float const",
    "i32": "int32_t const",
    "bool": "uint8_t const",
    "bits": "uint8_t const",
}


def tensor_fields(tensor: Tensor) -> tuple[Field, ...]:
    """Fields of a tensor of the variant: pointer, strides but the last, which is 1, and sizes."""
    name, dims = tensor.name, tensor.dims
    bits = tensor.kind == "bits"
    unit, sizes = ("bytes", "bits, or rows of them") if bits else ("elements", "elements")
    return (
        Field(name, "pointer", tensor.comment or f"{dims} dims", _ELEMENTS[tensor.kind]),
        *(Field(f"{name}_stride_{i}", "i64", unit) for i in range(dims - 1)),
        *(Field(f"{name}_size_{i}", "i32", sizes) for i in range(dims)),
    )


def merge_params(finish: Variant | None = None) -> ParameterBlock:
    """Fields of the merge kernel that combines the partial results of split tiles; the parameters
    of `finish`, a variant's `finish`, come last."""
    names = {
        "out",
        "lse",
        "plan",
        "partial_out",
        "partial_lse",
        "out_token_stride",
        "out_head_stride",
    }
    rows = tuple(f for f in _ROWS if f.name in names)
    own = () if finish is None else _variant_fields(finish)
    return ParameterBlock((*rows, Field("num_kv_heads", "i32", "KV heads"), *own))


def page_division(page_size: int) -> tuple[int, int]:
    """(magic, shift): token // page_size == umulhi(token, magic) >> shift if 0 <= token < 2^31.

    For powers of two magic is 0 and the division is token >> shift.
    (Granlund and Montgomery, "Division by Invariant Integers using Multiplication", 1994.)
    """
    if page_size < 1:
        raise ValueError(f"page_size must be at least 1, got {page_size}")
    if page_size & (page_size - 1) == 0:
        return 0, page_size.bit_length() - 1
    shift = (page_size - 1).bit_length() - 1
    return -(-(1 << (32 + shift)) // page_size), shift
