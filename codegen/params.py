"""Prints a `ParameterBlock` as the C++ struct that a kernel takes, offsets asserted."""

from __future__ import annotations

import textwrap

from cute_attn.abi import ParameterBlock

_GLUE = "\N{NO-BREAK SPACE}"  # a blank at which no line is broken


def cpp_struct(block: ParameterBlock, name: str = "Params") -> str:
    """The struct, its size and offsets asserted against those the host packs with."""
    width = max(len(f"{f.cpp_type} {f.name};") for f in block.fields)
    lines = [f"struct {name} {{"]
    for f in block.fields:
        declaration = f"{f.cpp_type} {f.name};"
        lines.append(f"  {declaration:<{width}}  // {f.comment}")
    lines.append("};")
    # The front end's own constant offset: NVRTC has no constant `offsetof`, and knows
    # `__builtin_offsetof` only from some 13.x on.
    lines.append(f"#define AT(field) __INTADDR__(&(({name}*)0)->field)")
    checks = [f"sizeof({name}) == {block.size}"]
    checks += [f"AT({f.name}) == {block.offsets[f.name]}" for f in block.fields]
    start = "static_assert("
    lines += textwrap.wrap(
        f"{start}{' && '.join(checks)});".replace(" ", _GLUE).replace(f"&&{_GLUE}", "&& "),
        width=100,
        subsequent_indent=" " * len(start),
        break_long_words=False,
    )
    lines.append("#undef AT")
    return "\n".join(lines).replace(_GLUE, " ")
