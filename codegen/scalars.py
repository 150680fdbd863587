"""Scalars of a variant in C++: fields of the parameter block, live ones as pointers."""

from __future__ import annotations

import re
from collections.abc import Sequence

from cute_attn.abi import Field
from cute_attn.variants import Scalar

CPP_KINDS = {"f32": "float", "i32": "int32_t"}


def scalar_field(s: Scalar) -> Field:
    """The parameter of a scalar."""
    if s.live:
        return Field(s.name, "pointer", s.comment, f"{CPP_KINDS[s.kind]} const")
    return Field(s.name, s.kind, s.comment)


def read_scalar(s: Scalar) -> str:
    """Its value, where `params` is at hand."""
    return f"__ldg(params.{s.name})" if s.live else f"params.{s.name}"


def over_params(text: str, scalars: Sequence[Scalar]) -> str:
    """C++ that has scalars under their own names, over `params`."""
    return _replaced(r"\b", text, scalars)


def with_live(text: str, scalars: Sequence[Scalar]) -> str:
    """C++ that has all scalars as `params.NAME`, with live ones read where they are."""
    return _replaced(r"\bparams\.", text, scalars)


def _replaced(before: str, text: str, scalars: Sequence[Scalar]) -> str:
    known = {s.name: read_scalar(s) for s in scalars}
    if not known:
        return text
    return re.sub(rf"{before}({'|'.join(known)})\b", lambda found: known[found[1]], text)
