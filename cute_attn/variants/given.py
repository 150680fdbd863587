"""From what a user gives a variant to its hooks and its band."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cute_attn.variants import analysis
from cute_attn.variants.band import Band
from cute_attn.variants.hook import Hook, traced
from cute_attn.variants.parameters import Parameter, scalars_of
from cute_attn.variants.program import ROLES, VECTOR_ROLES


def hook_of(
    name: str,
    role: str,
    given: Callable[..., Any] | Hook | None,
    parameters: tuple[Parameter, ...],
) -> Hook | None:
    """The hook of a role of variant `name`: a function is traced.

    Raises:
        TraceError, TypeError, ValueError: it cannot be one, or is one of another role.
    """
    if given is None:
        return None
    if isinstance(given, Hook):
        for part in given.parts or (given,):
            if part.program is not None and part.program.role != role:
                raise ValueError(
                    f"the {role} of variant {name!r} is hook {given.name!r}, which was traced as"
                    f" {part.program.role}"
                )
            if part.program is None and role in VECTOR_ROLES:
                raise ValueError(
                    f"the {role} of variant {name!r} is C++ text; it takes a function, to be traced"
                )
        return given
    if not callable(given):
        raise TypeError(
            f"the {role} of variant {name!r} is a {type(given).__name__}; it takes a function of"
            f" ({', '.join(ROLES[role])})"
            + ("" if role in VECTOR_ROLES else " or a Hook of C++ text")
        )
    return traced(role, given, parameters)


def bands_of(
    name: str,
    mask: Hook | None,
    parameters: tuple[Parameter, ...],
    band: Band | None,
    band_is_mask: bool | None,
) -> tuple[Band, bool]:
    """The band of a mask, and whether it is all of the mask: derived from a traced one.

    Raises:
        ValueError: a band is given that is derived, or that is limited by what is no i32 scalar.
    """
    if mask is None or mask.program is not None:
        if band is not None or band_is_mask is not None:
            why = "has no mask hook" if mask is None else "derives it from its traced mask"
            raise ValueError(f"variant {name!r} is given a band but {why}")
        if mask is None:
            return Band(), True
        assert mask.program is not None
        with mask.program.scalars_known():
            known = analysis.band_of(mask.program.result)
        return known.band, known.exact
    band = band or Band()
    integers = {s.name for s in scalars_of(parameters) if s.kind == "i32"}
    if unknown := band.scalars() - integers:
        raise ValueError(
            f"the band of variant {name!r} is limited by {sorted(unknown)[0]!r}, which is none of "
            f"its i32 scalars: {sorted(integers) or 'none'}"
        )
    return band, bool(band_is_mask)
