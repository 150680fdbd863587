"""Variants of query rows whose positions do not follow one by one: kernels look them up."""

from __future__ import annotations

from dataclasses import replace

from cute_attn.variants.build import substitute
from cute_attn.variants.expression import Expression, argument, load
from cute_attn.variants.given import bands_of
from cute_attn.variants.hook import Hook, of_program
from cute_attn.variants.parameters import join
from cute_attn.variants.program import ROLES, VECTOR_ROLES
from cute_attn.variants.tensor import Tensor
from cute_attn.variants.variant import Variant

POSITIONS = Tensor("row_positions", "i32", 1, "(query rows,) true position of each")
REQUESTS = Tensor("row_requests", "i32", 1, "(query rows,) request of each")


def looked_up(variant: Variant) -> Variant:
    """The variant where a query's position is its row number: what its hooks take for `q_idx` (or
    `pos`) and `b` stands at that place of tensors `row_positions` and `row_requests`.

    Raises:
        ValueError: a hook is C++ text, or transforms keys or values by their request: rows of
            several requests read them.
    """
    hooks: dict[str, Hook | None] = {}
    parameters = join(variant.scalars, variant.tensors)
    for role, hook in variant.hooks.items():
        if role in ("key", "value"):
            if hook.reads("b"):
                raise ValueError(
                    f"the {role} hook of variant {variant.name!r} reads the request (b), and what"
                    " requests share has none"
                )
            hooks[role] = hook
            continue
        at = "pos" if role in VECTOR_ROLES else "q_idx"
        if not (hook.reads("b") or hook.reads(at)):
            hooks[role] = hook
            continue
        if hook.program is None:
            raise ValueError(
                f"the {role} hook of variant {variant.name!r} is C++ text and reads positions or"
                " requests of queries; where ranges are shared it takes a traced function"
            )
        program = hook.program
        row = argument(at)
        given: dict[str, Expression] = {
            at: load(POSITIONS.name, "i32", (row,)),
            "b": load(REQUESTS.name, "i32", (row,)),
        }
        new = substitute(program.result, {}, {k: x for k, x in given.items() if k in ROLES[role]})
        own = [t for t in (POSITIONS, REQUESTS) if t.name in new[program.result].reads]
        parameters = join(parameters, tuple(own))
        changed = replace(
            program,
            result=new[program.result],
            parameters=join(program.parameters, tuple(own)),
            names={new[x]: name for x, name in program.names.items() if x in new},
            places={new[x]: place for x, place in program.places.items() if x in new},
        )
        hooks[role] = of_program(hook.name, changed)
    bands = bands_of(variant.name, hooks.get("mask"), parameters, None, None)
    new_variant = Variant.__new__(Variant)
    name = f"{variant.name}_at_rows"
    return new_variant._set(name, hooks, variant.softmax, parameters, *bands)


def needs_look_up(variant: Variant) -> bool:
    """Whether more than a band of keys depends on the position or request of a query."""
    for role, hook in variant.hooks.items():
        if role == "mask" and variant.band_is_mask:
            continue
        if hook.reads("b"):
            return True
        if role not in ("key", "value") and hook.reads("pos" if role in VECTOR_ROLES else "q_idx"):
            return True
    return False
