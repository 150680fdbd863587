"""Prints what hooks on scores do in flat KV blocks as C++ functions of the generated file.

See `cute_attn.variants.flat`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cute_attn.codegen.hooks import (
    BLOCK_CORNERS,
    returning,
    scalars_read,
    values_struct,
    wrapped,
)
from cute_attn.codegen.scalars import with_live
from cute_attn.variants import Scalar, Variant
from cute_attn.variants.band import Band
from cute_attn.variants.expression import Expression
from cute_attn.variants.flat import FlatTest, rows_in_band, shift_of
from cute_attn.variants.printer import cpp_body, cpp_values
from cute_attn.variants.program import Program

_OF_ROW = "RowValues const& values, FlatValues const& flat, int b, int h, int q_idx"
_OF_SCORE = (
    "RowValues const& values, FlatValues const& flat, float score, int b, int h, int q_idx,"
    " int kv_idx, Lag lag"
)


@dataclass(frozen=True)
class FlatHooks:
    """The hooks of one kernel in flat blocks.

    Attributes:
        text: `FlatValues`, `flat_values`, and the functions that the others name.
        shift: all that is left of the logits is a number to add for each row: `flat_shift`.
        logits: they are `flat_logits`.
        rows: the mask leaves `band` of the rows of which `flat_row` is true.
        band: see rows.
        mask: the mask is `flat_mask`.
    """

    text: str = ""
    shift: bool = False
    logits: bool = False
    rows: bool = False
    band: Band = Band()  # noqa: RUF009 - it is frozen, like this class
    mask: bool = False

    def __bool__(self) -> bool:
        return bool(self.text)

    @property
    def masks(self) -> bool:
        """Whether flat blocks are masked otherwise than others."""
        return self.rows or self.mask


def flat_hooks(variant: Variant, *, mask: bool) -> FlatHooks:
    """The hooks of a variant in flat blocks; false if kernels make no difference.

    Args:
        variant: the variant.
        mask: the kernel masks by the hook, not by the band.

    Which blocks are flat `variant_block` says, if there is one, otherwise `variant_flat`.
    """
    test = variant.flat_test
    if test is None:
        return FlatHooks()
    programs = {
        role: hook.program
        for role, hook in variant.hooks.items()
        if role in ("logits", "mask")[: 1 + mask]
        if hook.program is not None and hook.program.stages.elements
    }
    elements: dict[str, Expression] = {}
    for program in programs.values():
        elements |= program.stages.elements
    if not elements:
        return FlatHooks()
    parts = [_elements(elements, variant)]
    if variant.block_test is None:
        parts.append(_test(test, variant.scalars))
    shift, rows, band = None, None, Band()
    if logits := programs.get("logits"):
        shift = shift_of(logits.stages.flat) if variant.softmax else None
        if shift is not None:
            parts.append(
                _function(
                    "Added to the scores of a row", "float flat_shift", _OF_ROW, logits, shift
                )
            )
        else:
            title, flat = "Logits of a flat block", logits.stages.flat
            parts.append(_function(title, "float flat_logits", _OF_SCORE, logits, flat))
    if masked := programs.get("mask"):
        with masked.scalars_known():
            found = rows_in_band(masked.stages.flat)
        if found is not None:
            rows, band = found
            title = "Whether the mask leaves a row its band"
            parts.append(_function(title, "bool flat_row", _OF_ROW, masked, rows))
        else:
            title, flat = "Mask of a flat block", masked.stages.flat
            own = _OF_SCORE.replace(" float score,", "")
            parts.append(_function(title, "bool flat_mask", own, masked, flat))
    return FlatHooks(
        text="\n\n".join(parts),
        shift=shift is not None,
        logits="logits" in programs and shift is None,
        rows=rows is not None,
        band=band,
        mask="mask" in programs and rows is None,
    )


def _test(test: FlatTest, scalars: tuple[Scalar, ...]) -> str:
    lines = cpp_values({"flat": test.flat}, test.limits)
    lines[-1] = lines[-1].replace("bool const flat = ", "return ")
    return "\n".join(
        [
            "// Whether a block of scores is flat.",
            wrapped(f"CUTE_DEVICE bool variant_flat({BLOCK_CORNERS}) {{"),
            *(f"  {with_live(line, scalars)}" for line in lines),
            "}",
        ]
    )


def _elements(elements: Mapping[str, Expression], variant: Variant) -> str:
    return values_struct(
        "FlatValues",
        "the same for all keys of a query row in a flat block: read at any of them",
        "flat_values(Params const& params, int b, int h, int q_idx, int kv_idx)",
        elements,
        variant.scalars,
    )


def _function(title: str, name: str, arguments: str, program: Program, result: Expression) -> str:
    stages = program.stages
    names = {x: name for x, name in stages.names.items() if x in set(result.walk())}
    with program.scalars_known():
        text = returning(cpp_body(result, names, lag="Lag lag" in arguments))
    lines = [*scalars_read(program.parameters, result.reads), *(f"  {x}" for x in text.split("\n"))]
    signature = wrapped(f"CUTE_DEVICE {name}(Params const& params, {arguments}) {{")
    return "\n".join([f"// {title}.", signature, *lines, "}"])
