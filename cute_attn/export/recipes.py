"""Tensor maps as data: what `cute_attn.api.tensor_maps` computes of tensors, as recipes.

A recipe gives each dimension's size, stride and box as a number or a named value of the tensor, so
that any program can encode the map (`TensorMap` in `manifest` says what the values are).
"""

from __future__ import annotations

from collections.abc import Mapping

from cute_attn.abi import ParameterBlock
from cute_attn.codegen.smem_tile import ELEMENT_BYTES, SWIZZLE_ROWS, panel_columns
from cute_attn.codegen.spec import KernelSpec
from cute_attn.export.manifest import Dimension, TensorMap, Term
from cute_attn.runtime.tensor_map import TensorMapSpec

VALUES = (
    "tokens", "heads", "token_stride", "head_stride", "pages", "rows", "page_stride", "row_stride",
    "page_groups", "groups", "box_rows",
)  # fmt: skip
DTYPES = {"bf16": "bfloat16", "fp16": "float16"}
"""Of bundles, and how tensor maps call them."""
_LEAST_STRIDE = 16  # bytes; what TMA takes where a stride says nothing
_L2_PROMOTION = 128


def recipes_of(params: ParameterBlock, spec: KernelSpec) -> tuple[TensorMap, ...]:
    """The tensor maps among a kernel's parameters, in their order."""
    recipes: list[TensorMap] = []
    by_groups = "k_page_groups" in params.offsets
    for field in params.fields:
        if field.kind != "tensor_map":
            continue
        tensor = field.name.partition("_")[0]
        if tensor == "q":
            recipes.append(_recipe(spec, tensor, spec.head_dim_qk, _q_dimensions(spec)))
            continue
        head_dim = spec.head_dim_qk if tensor == "k" else spec.head_dim_vo
        if by_groups:
            recipes.append(_recipe(spec, tensor, head_dim, _grouped(head_dim), page_groups=True))
            recipes.append(_recipe(spec, tensor, head_dim, _ungrouped(head_dim), page_groups=False))
        else:
            recipes.append(_recipe(spec, tensor, head_dim, _by_rows(head_dim)))
    return tuple(recipes)


def resolve(recipe: TensorMap, values: Mapping[str, int]) -> TensorMapSpec:
    """The map of a tensor, but for its address.

    Args:
        recipe: how.
        values: of the tensor, those that the recipe names.
    """
    sizes = [_number(d.size, values) for d in recipe.dimensions]
    strides = []
    for size, dimension in zip(sizes[1:], recipe.dimensions[1:], strict=True):
        stride = dimension.stride
        assert stride is not None
        known = stride.value is None or size > 1
        strides.append(_number(stride, values) * recipe.element_bytes if known else _LEAST_STRIDE)
    return TensorMapSpec(
        dtype=recipe.dtype,
        dims=tuple(max(size, 1) for size in sizes),
        strides_bytes=tuple(strides),
        box=tuple(_number(d.box, values) for d in recipe.dimensions),
        swizzle=recipe.swizzle,
        l2_promotion=recipe.l2_promotion,
    )


def _number(term: Term, values: Mapping[str, int]) -> int:
    value = 1 if term.value is None else values[term.value]
    return value * term.times // term.divided_by


def _recipe(
    spec: KernelSpec,
    tensor: str,
    head_dim: int,
    dimensions: tuple[Dimension, ...],
    page_groups: bool | None = None,
) -> TensorMap:
    return TensorMap(
        field=f"{tensor}_map",
        tensor=tensor,
        page_groups=page_groups,
        dtype=DTYPES[spec.dtype],
        element_bytes=2,
        swizzle=panel_columns(head_dim) * ELEMENT_BYTES,
        l2_promotion=_L2_PROMOTION,
        dimensions=dimensions,
    )


def _one(number: int) -> Term:
    return Term(None, number)


def _q_dimensions(spec: KernelSpec) -> tuple[Dimension, ...]:
    return (
        Dimension(_one(spec.head_dim_qk), None, _one(panel_columns(spec.head_dim_qk))),
        Dimension(Term("heads"), Term("head_stride"), _one(spec.group)),
        Dimension(Term("tokens"), Term("token_stride"), _one(spec.tile.q // spec.group)),
    )


def _by_rows(head_dim: int) -> tuple[Dimension, ...]:
    return (
        Dimension(_one(head_dim), None, _one(panel_columns(head_dim))),
        Dimension(Term("rows"), Term("row_stride"), Term("box_rows")),
        Dimension(Term("heads"), Term("head_stride"), _one(1)),
        Dimension(Term("pages"), Term("page_stride"), _one(1)),
    )


def _grouped(head_dim: int) -> tuple[Dimension, ...]:
    panel = panel_columns(head_dim)
    return (
        Dimension(_one(panel), None, _one(panel)),
        Dimension(_one(SWIZZLE_ROWS), Term("row_stride"), _one(SWIZZLE_ROWS)),
        Dimension(_one(head_dim // panel), _one(panel), _one(head_dim // panel)),
        Dimension(Term("heads"), Term("head_stride"), _one(1)),
        Dimension(
            Term("groups"),
            Term("row_stride", SWIZZLE_ROWS),
            Term("box_rows", divided_by=SWIZZLE_ROWS),
        ),
    )


def _ungrouped(head_dim: int) -> tuple[Dimension, ...]:
    panel = panel_columns(head_dim)
    return (
        Dimension(_one(panel), None, _one(panel)),
        Dimension(Term("rows"), Term("row_stride"), _one(SWIZZLE_ROWS)),
        Dimension(_one(head_dim // panel), _one(panel), _one(head_dim // panel)),
        Dimension(Term("heads"), Term("head_stride"), _one(1)),
        Dimension(Term("pages"), Term("page_stride"), _one(1)),
    )
