"""Prints a variant's vector hooks as C++ structs of the generated file, for `vector_hooks.hpp`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from cute_attn.codegen.hooks import accessor
from cute_attn.codegen.scalars import read_scalar
from cute_attn.variants import Hook, Scalar, Variant
from cute_attn.variants.program import ROW_ROLES, VECTOR_ROLES
from cute_attn.variants.vector_printer import VectorFunctions, as_statements, vector_functions

UNIT = 16
"""Elements that a thread takes of a row at a time; paired elements are a multiple."""

_SIGNATURES = {
    "position": ("int", "VectorPlace at"),
    "pair_position": ("int", "VectorPlace at, int pair"),
    "frequency": ("double", "int pair"),
    "first": ("float", "VectorPlace at, VectorPair of"),
    "second": ("float", "VectorPlace at, VectorPair of"),
    "element": ("float", "VectorPlace at, VectorElement of"),
    "pair_sum": ("float", "VectorPlace at, VectorPair of"),
    "element_sum": ("float", "VectorPlace at, VectorElement of"),
}
"""Arguments behind the parameter block."""
_MEMBERS = {
    "at": ("b", "h", "pos"),
    "of": ("pair", "cosine", "sine", "first", "second", "index", "x", "sums"),
}


@dataclass(frozen=True)
class VectorHooks:
    """The vector hooks of one kernel.

    Attributes:
        text: their structs, QueryHook, KeyHook, ValueHook, behind accessors of what they read.
        roles: which there are, of "query", "key" and "value".
        turns: for each role, where its `Turns` are in shared memory, "" if it turns nothing.
        tables: members of shared memory that hold `Turns`: hook, name.
        tensors: whether a frequency reads a tensor.
    """

    text: str
    roles: tuple[str, ...]
    turns: Mapping[str, str]
    tables: tuple[tuple[str, str], ...]
    tensors: bool

    def __bool__(self) -> bool:
        return bool(self.roles)


@lru_cache(maxsize=64)
def vector_hooks(variant: Variant, head_dim_qk: int, head_dim_vo: int) -> VectorHooks:
    """The vector hooks of a kernel for such head dims. They go behind what `cpp_row_hooks` has
    printed and ahead of `cpp_hooks`."""
    there = variant.read_by(*ROW_ROLES)
    own = variant.read_by(*VECTOR_ROLES)
    structs = [accessor(t) for t in variant.tensors if t in own and t not in there]
    turns: dict[str, str] = {}
    tables: dict[str, tuple[str, str]] = {}
    known: dict[tuple[str, int], str] = {}
    reads_tensor = False
    # Keys first: queries have the same table if their frequencies are the same.
    for role in sorted(variant.vector_hooks, key=("key", "query", "value").index):
        hook, columns = variant.vector_hooks[role], head_dim_vo if role == "value" else head_dim_qk
        functions, name = _functions(hook), f"{role.capitalize()}Hook"
        same = known.setdefault((hook.cpp, columns), name)
        if same == name:
            structs.append(_struct(role, hook, functions, variant, columns))
        else:
            structs.append(f"// {role.capitalize()}: {hook.name}.\nusing {name} = {same};")
        turns[role] = ""
        if functions.turns:
            key = f"{functions.pairing} {functions.bodies['frequency']} {role == 'value'}"
            _, turns[role] = tables.setdefault(key, (name, f"{role}_turns"))
            reads_tensor |= any(
                _has(functions.bodies["frequency"], t.name) for t in variant.tensors
            )
    roles = tuple(variant.vector_hooks)
    return VectorHooks("\n\n".join(structs), roles, turns, tuple(tables.values()), reads_tensor)


def vector_reasons(variant: Variant, head_dim_qk: int, head_dim_vo: int) -> list[str]:
    """Why kernels cannot run a variant's vector hooks; empty = they can."""
    try:
        variant.check_head_dims(head_dim_qk, head_dim_vo)
    except ValueError as error:
        return [str(error)]
    pairings = [_functions(hook).pairing for hook in variant.vector_hooks.values()]
    counts = [p.elements for p in pairings if p is not None and p.elements is not None]
    return [
        f"rotary_dim is {count} (pairs of a row); kernels take multiples of {UNIT}"
        for count in dict.fromkeys(counts)
        if count % UNIT
    ]


def turns_bytes(variant: Variant, head_dim_qk: int, head_dim_vo: int) -> int:
    """Shared memory of the `Turns` of a variant's hooks: 16 bytes a pair."""
    hooks = vector_hooks(variant, head_dim_qk, head_dim_vo)
    total = 0
    for hook, _ in hooks.tables:
        role = hook.removesuffix("Hook").lower()
        columns = head_dim_vo if role == "value" else head_dim_qk
        total += 16 * (_paired(_functions(variant.vector_hooks[role]), columns) // 2)
    return total


@lru_cache(maxsize=64)
def sums_before_pairs(variant: Variant) -> bool:
    """Whether a hook sums over the row and mixes pairs: it then needs weights and turns at once."""
    functions = [_functions(hook) for hook in variant.vector_hooks.values()]
    return any(f.pairing is not None and f.sums > 0 for f in functions)


@lru_cache(maxsize=64)
def is_heavy(variant: Variant, head_dim_qk: int, head_dim_vo: int, rows: int = 8) -> bool:
    """Whether a variant with vector hooks takes more registers than turning all pairs does: some
    elements are in no pair, there are sums over the row before pairs, or decode tiles of more than
    eight `rows` choose the KV blocks that their mask leaves."""
    if sums_before_pairs(variant):
        return True
    if variant.vector_hooks and variant.block_test is not None and rows > 8:
        return True
    for role, hook in variant.vector_hooks.items():
        columns = head_dim_vo if role == "value" else head_dim_qk
        if 0 < _paired(_functions(hook), columns) < columns:
            return True
    return False


def _functions(hook: Hook) -> VectorFunctions:
    assert hook.program is not None  # vector hooks are traced
    with hook.program.scalars_known():
        return vector_functions(hook.program.result, hook.program.names)


def _paired(functions: VectorFunctions, columns: int) -> int:
    return 0 if functions.pairing is None else functions.pairing.within(columns)


def _struct(
    role: str, hook: Hook, functions: VectorFunctions, variant: Variant, columns: int
) -> str:
    paired = _paired(functions, columns)
    halves = functions.pairing is not None and functions.pairing.halves
    traits = [
        f"kPaired = {paired}",
        f"kHalves = {_bool(halves)}",
        f"kTurns = {_bool(functions.turns)}",
        f"kFollows = {_bool(functions.follows)}",
        f"kSums = {functions.sums}",
    ]
    values = ", ".join(x.split(" = ")[1] for x in traits)
    lines = [
        f"// {role.capitalize()}: {hook.name}.",
        f"//   {', '.join(traits)}",
        f"struct {role.capitalize()}Hook : VectorTraits<{values}> {{",
    ]
    unneeded = {0: ("first", "second", "pair_sum"), columns: ("element",)}.get(paired, ())
    for name, body in functions.bodies.items():
        if name.startswith(unneeded) or (name, body) == ("position", "pos"):
            continue
        if name == "position" and functions.by_pair:
            lines.append("  static constexpr bool kPairPositions = true;")
            name = "pair_position"
        lines += _function(name, body, variant.scalars, columns)
    for what in ("pair", "element"):
        if functions.sums and not f"{what}_sum".startswith(unneeded):
            arguments = f"VectorPlace at, Vector{what.capitalize()} of, float* sums"
            lines.append(_signature("void", f"add_{what}", arguments))
            numbers = range(functions.sums)
            lines += [f"    sums[{k}] += {what}_sum_{k}_of(params, at, of);" for k in numbers]
            lines.append("  }")
    return "\n".join([*lines, "};"])


def _bool(value: bool) -> str:
    return "true" if value else "false"


def _has(text: str, name: str) -> bool:
    return re.search(rf"\b{name}\b", text) is not None


def _function(name: str, body: str, scalars: tuple[Scalar, ...], columns: int) -> list[str]:
    kind, arguments = _SIGNATURES[re.sub(r"_\d+$", "", name)]
    lines = [_signature(kind, f"{name}_of", arguments)]
    if _has(body, "head_dim"):
        lines.append(f"    constexpr int head_dim = {columns};")
    for s in scalars:
        if _has(body, s.name):
            own = "int32_t" if s.kind == "i32" else "double" if kind == "double" else "float"
            lines.append(f"    {own} const {s.name} = {read_scalar(s)};")
    text = as_statements(body)
    for argument, members in _MEMBERS.items():
        if f" {argument}" in arguments:
            text = re.sub(rf"\b({'|'.join(members)})\b", rf"{argument}.\1", text)
    lines += [f"    {line}" for line in text.split("\n")]
    return [*lines, "  }"]


def _signature(kind: str, name: str, arguments: str) -> str:
    return f"  CUTE_DEVICE static {kind} {name}(Params const& params, {arguments}) {{"
