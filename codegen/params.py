"""Prints a `ParameterBlock` as the C++ struct that a kernel takes, offsets asserted."""

from __future__ import annotations

from cute_attn.abi import ParameterBlock


def cpp_struct(block: ParameterBlock, name: str = "Params") -> str:
    """The struct and one `static_assert` per field, against the offsets the host packs with."""
    width = max(len(f"{f.cpp_type} {f.name};") for f in block.fields)
    lines = [f"struct {name} {{"]
    for f in block.fields:
        declaration = f"{f.cpp_type} {f.name};"
        lines.append(f"  {declaration:<{width}}  // {f.comment}")
    lines.append("};")
    lines.append(f"static_assert(sizeof({name}) == {block.size});")
    for f in block.fields:
        # The front end's own constant offset: NVRTC has no constant `offsetof`, and knows
        # `__builtin_offsetof` only from some 13.x on.
        offset = f"__INTADDR__(&(({name}*)0)->{f.name})"
        lines.append(f"static_assert({offset} == {block.offsets[f.name]});")
    return "\n".join(lines)
