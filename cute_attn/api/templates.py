"""`register_template`: a kernel schedule of one's own, from a template outside the package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from cute_attn.api import checks, dispatch
from cute_attn.codegen.registered import REGISTERED, RegisteredTemplate
from cute_attn.codegen.spec import ARCHS, KernelSpec, Tile
from cute_attn.variants.program import ROLES, VECTOR_ROLES

_LOADERS = ("ragged", "paged")
_ROLES = tuple(role for role in ROLES if role not in VECTOR_ROLES)


def register_template(
    schedule: str,
    template: str | Path,
    *,
    tiles: Mapping[int | tuple[int, int], Tile],
    archs: Sequence[str],
    smem_bytes: Callable[[KernelSpec], int] | int = 0,
    loaders: Sequence[str] = ("ragged",),
    hooks: Sequence[str] = (),
    softmax_off: bool = False,
    tensor_maps: bool = False,
    dependent_launch: bool = False,
    values: Callable[[KernelSpec], Mapping[str, Any]] | None = None,
    include_dirs: Sequence[str | Path] = (),
    supports: Callable[[KernelSpec], list[str]] | None = None,
    costs_like: str = dispatch.AMPERE_TILE,
) -> None:
    """Makes a template a schedule: `BatchAttention(schedule=...)`, `choose`, `build` and `warmup`
    take it by its name, for this process. What a template is given and has to do stands in
    docs/templates.md.

    Args:
        schedule: its name, a C identifier that no other schedule has.
        template: a jinja2 file of CUDA C++.
        tiles: tile by (head_dim_qk, head_dim_vo), or by head_dim where they are equal.
        archs: architectures that it is written for, e.g. ["sm_80", "sm_90a"]. A GPU of "sm_90a"
            also takes one for "sm_90".
        smem_bytes: dynamic shared memory of a block, or a function of the spec.
        loaders: "ragged", "paged" or both.
        hooks: roles of a variant's hooks that it calls: "mask", "logits", "row_state", "output".
            Variants with others are refused, so also those with vector hooks.
        softmax_off: it serves variants without softmax.
        tensor_maps: K and V come through tensor maps `k_map` and `v_map` (boxes of 64 columns and
            tile.kv rows, or gcd(page_size, tile.kv), with the 128-byte swizzle; pages a multiple of
            16) rather than by pointers and strides. Needs archs from "sm_90" on.
        dependent_launch: it is written as a programmatic dependent: it waits for its predecessor.
        values: further values of the template, by spec.
        include_dirs: directories of its own headers.
        supports: reasons against a spec, one line each; empty: there are none.
        costs_like: the schedule whose costs plans and predictions take.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if not schedule.isidentifier() or not schedule.isascii():
        raise ValueError(f"schedule is {schedule!r}; it takes a C identifier")
    if schedule in dispatch.known_schedules():
        raise ValueError(f"schedule is {schedule!r}; there is one of this name")
    path = Path(template).resolve()
    if not path.is_file():
        raise ValueError(f"template is {str(template)!r}, which is no file")
    checks.one_of("costs_like", costs_like, dispatch.BUILT_IN_SCHEDULES)
    for name, given, known in (
        ("archs", archs, ARCHS),
        ("loaders", loaders, _LOADERS),
        ("hooks", hooks, _ROLES),
    ):
        if isinstance(given, str):
            raise TypeError(f"{name} is {given!r}; it takes a sequence of names")
        for one in given:
            checks.one_of(name, one, known)
    if not archs or not loaders:
        raise ValueError(f"archs is {list(archs)} and loaders {list(loaders)}; at least one each")
    if tensor_maps and (old := [arch for arch in archs if arch < "sm_90"]):
        raise ValueError(f"archs has {old[0]!r}, which has no tensor maps; tensor_maps is True")
    REGISTERED[schedule] = RegisteredTemplate(
        schedule=schedule,
        template=path,
        tiles=_tile_table(tiles),
        archs=tuple(archs),
        smem_bytes=smem_bytes if callable(smem_bytes) else lambda spec: smem_bytes,
        values=values,
        include_dirs=tuple(Path(folder).resolve() for folder in include_dirs),
        loaders=tuple(loaders),
        tensor_maps=tensor_maps,
        hooks=tuple(hooks),
        softmax_off=softmax_off,
        dependent_launch=dependent_launch,
        supports=supports,
        costs_like=costs_like,
    )


def _tile_table(tiles: Mapping[int | tuple[int, int], Tile]) -> dict[tuple[int, int], Tile]:
    if not tiles:
        raise ValueError("tiles is empty; it takes a tile for at least one head_dim")
    table = {}
    for dims, tile in tiles.items():
        if not isinstance(tile, Tile):
            raise TypeError(f"tiles[{dims!r}] is a {type(tile).__name__}; it takes a Tile")
        for name in ("q", "kv", "threads", "blocks_per_sm"):
            checks.positive(f"tiles[{dims!r}].{name}", getattr(tile, name))
        if tile.threads > 1024:
            raise ValueError(f"tiles[{dims!r}].threads is {tile.threads}; a block has up to 1024")
        table[(dims, dims) if isinstance(dims, int) else dims] = tile
    return table
