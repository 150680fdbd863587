"""Prints a variant's hooks as C++ functions of the generated file."""

from __future__ import annotations

from cute_attn.variants import Hook, Scalar, Variant

_CPP = {"f32": "float", "i32": "int32_t"}


def cpp_hooks(variant: Variant, *, mask: bool = True) -> str:
    """`variant_mask` (with `mask`: a kernel may mask by the band instead) and `variant_logits`."""
    parts = []
    if variant.mask and mask:
        parts.append(
            _function(
                "Mask", variant.mask, variant.scalars,
                "bool variant_mask(Params const& params, int b, int h, int q_idx, int kv_idx)",
            )
        )  # fmt: skip
    if variant.logits:
        parts.append(
            _function(
                "Logits", variant.logits, variant.scalars,
                "float variant_logits(Params const& params, float score, int b, int h, int q_idx,"
                " int kv_idx)",
            )
        )  # fmt: skip
    return "\n\n".join(parts)


def _function(role: str, hook: Hook, scalars: tuple[Scalar, ...], signature: str) -> str:
    used = [s for s in scalars if s.name in hook.cpp]
    lines = [f"// {role}: {hook.name}.", f"CUTE_DEVICE {signature} {{"]
    lines += [f"  {_CPP[s.kind]} const {s.name} = params.{s.name};" for s in used]
    return "\n".join([*lines, f"  return {hook.cpp};", "}"])
