"""Which kernel serves a batch: from device, dtypes, dims, KV format and lengths to a `KernelSpec`.

    sm_90a   every request has at most 16 packed query rows   ampere_decode, built for sm_90, with
                                                              query tiles of 8 or 16 rows
             otherwise                                        hopper_tile: ragged, paged (TMA, page
                                                              sizes that are a multiple of 16) or
                                                              gather (any other page size); of
                                                              some head dims another tile if rows
                                                              see many keys (`is_long`), of
                                                              half the rows if no request has more
    sm_80, sm_86, sm_89, sm_90                                ampere_decode / ampere_tile

Head dims (576, 512), the latent form of multi-head latent attention, have a kernel of their own on
sm_90a, hopper_mla, and none elsewhere.

Where the Hopper kernel has no row in its table for the head dims, ampere_tile for sm_90 is taken.
Schedules of users (`register_template`) are taken by their names only.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from cute_attn import ampere, hopper
from cute_attn.codegen.registered import REGISTERED
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import LATENT_DIMS, KernelSpec, Tile, UnsupportedSpecError
from cute_attn.codegen.vector_hooks import is_heavy, turns_bytes
from cute_attn.scheduler import Geometry
from cute_attn.variants import Variant, causal, full, sliding_window, soft_cap

IntArray = npt.NDArray[np.int32] | npt.NDArray[np.int64]

SMALL_ROWS = max(ampere.DECODE_ROWS)
"""Packed query rows up to which a request is decoded rather than prefilled."""
MOST_ROWS = hopper.FEW_ROWS
"""Packed query rows of the longest request above which it does not matter how many there are."""
FEW_TILES = max(ampere.TILES_PER_SM)
"""Query tiles per SM up to which decode steps take kernels of larger blocks."""

HOPPER_TILE = "hopper_tile"
HOPPER_MLA = "hopper_mla"
AMPERE_TILE = "ampere_tile"
AMPERE_DECODE = "ampere_decode"
_HOPPER = (HOPPER_TILE, HOPPER_MLA)
BUILT_IN_SCHEDULES = (HOPPER_TILE, HOPPER_MLA, AMPERE_TILE, AMPERE_DECODE)

VARIANTS = {
    "full": full(),
    "causal": causal(),
    "sliding_window": sliding_window(),
    "soft_cap": soft_cap(),
}


@dataclass(frozen=True)
class Problem:
    """What decides about the kernel, beside the lengths of the step.

    Attributes:
        arch: of the device: "sm_80" ... "sm_90a".
        dtype: "bf16" or "fp16".
        head_dim_qk, head_dim_vo: elements.
        group: query heads per KV head.
        variant: the hooks.
        page_size: tokens per page, or None for ragged KV.
        per_head: every KV head has tables of its own.
    """

    arch: str
    dtype: str
    head_dim_qk: int
    head_dim_vo: int
    group: int
    variant: Variant
    page_size: int | None
    per_head: bool = False


def named_variant(variant: str | Variant) -> Variant:
    """The variant, if it is one or the name of a built-in one."""
    if isinstance(variant, Variant):
        return variant
    if variant not in VARIANTS:
        raise ValueError(
            f"variant is {variant!r}; it takes a Variant or one of {', '.join(VARIANTS)}"
        )
    return VARIANTS[variant]


def emitter_arch(device_arch: str, schedule: str) -> str:
    """What a schedule is compiled for on a device: the Ampere kernels need no "a" features."""
    own = REGISTERED.get(schedule)
    if schedule in _HOPPER or (own is not None and device_arch in own.archs):
        return device_arch
    return {"sm_90a": "sm_90", "sm_87": "sm_86"}.get(device_arch, device_arch)


def known_schedules() -> tuple[str, ...]:
    """Names of all schedules, those of users last."""
    return (*BUILT_IN_SCHEDULES, *REGISTERED)


def costs_of(schedule: str) -> str:
    """The built-in schedule whose costs and times a schedule has."""
    own = REGISTERED.get(schedule)
    like = schedule if own is None else own.costs_like
    # Its head dims have a row in the tables of the other Hopper kernel.
    return HOPPER_TILE if like == HOPPER_MLA else like


def schedules(problem: Problem, rows: int | None) -> list[str]:
    """Schedules to try in this order for requests of at most `rows` packed query rows; None: any
    number."""
    if (problem.head_dim_qk, problem.head_dim_vo) == LATENT_DIMS:
        return [HOPPER_MLA]
    tile = [HOPPER_TILE, AMPERE_TILE] if problem.arch == "sm_90a" else [AMPERE_TILE]
    return tile if rows is None or rows > SMALL_ROWS else [AMPERE_DECODE, *tile]


def is_long(problem: Problem, q_len: IntArray, kv_len: IntArray, band: tuple[int, int]) -> bool:
    """Whether the tile for long keys is taken: query tokens see so many, in the mean.

    Args:
        problem: what is asked.
        q_len, kv_len: (requests,) tokens.
        band: (window_left, window_right) of the step.
    """
    least = hopper.long_keys(problem.head_dim_qk, problem.head_dim_vo, problem.variant)
    keys = np.minimum(kv_len, sum(band) + 1)
    beyond = np.dot(q_len.astype(np.int64, copy=False), keys - least)
    return bool(beyond >= 0 and np.count_nonzero(q_len))


def tiles_per_sm(q_len: IntArray, rows: int, num_kv_heads: int, num_sms: int) -> int:
    """Query tiles of a decode step per SM, rounded up.

    Args:
        q_len: (requests,) query tokens.
        rows: packed query rows of the longest request.
        num_kv_heads: KV heads.
        num_sms: SMs that the step gets.
    """
    tiles = -(-rows // ampere.decode_rows(rows)) * num_kv_heads
    return -(-int(np.count_nonzero(q_len)) * tiles // num_sms)


def spec_for(
    problem: Problem,
    schedule: str,
    *,
    rows: int | None = None,
    tiles_per_sm: int | None = None,
    long: bool = False,
) -> KernelSpec:
    """The spec of `schedule` for a problem, with the tile of the architecture's table; `rows`,
    `tiles_per_sm` and `long`: see `choose`.

    Raises:
        UnsupportedSpecError: there is none; the reasons say why.
    """
    if schedule in _HOPPER:
        if problem.page_size is None:
            loader = "ragged"
        else:
            loader = "paged" if problem.page_size % 16 == 0 else "gather"
    else:
        loader = "ragged" if problem.page_size is None else "paged"
    arch = emitter_arch(problem.arch, schedule)
    dims = (problem.head_dim_qk, problem.head_dim_vo)
    tile = default_tile(
        arch,
        schedule,
        *dims,
        loader,
        problem.variant,
        rows=rows,
        tiles_per_sm=tiles_per_sm,
        page_size=problem.page_size,
        long=long,
        dtype=problem.dtype,
    )
    spec = KernelSpec(
        arch=arch,
        schedule=schedule,
        dtype=problem.dtype,
        head_dim_qk=problem.head_dim_qk,
        head_dim_vo=problem.head_dim_vo,
        loader=loader,
        group=problem.group,
        variant=problem.variant,
        tile=tile or Tile(q=64, kv=64, stages=2, threads=128),
        per_head=problem.per_head,
    )
    reasons = supports(spec)
    own = REGISTERED.get(schedule)
    if own is not None and own.tensor_maps and (problem.page_size or 0) % 16:
        reasons.append(f"page_size is {problem.page_size}; tensor maps take multiples of 16")
    if tile is None and not reasons:
        reasons = [f"no tile for head dims ({spec.head_dim_qk}, {spec.head_dim_vo}) on {arch}"]
    if reasons:
        raise UnsupportedSpecError(f"{schedule} for {problem.arch}", reasons)
    return spec


def choose(
    problem: Problem,
    *,
    rows: int | None,
    tiles_per_sm: int | None = None,
    long: bool = False,
    schedule: str | None = None,
) -> KernelSpec:
    """The spec for a batch.

    Args:
        problem: what is asked.
        rows: packed query rows (query tokens x group) of the longest request; None: any number.
        tiles_per_sm: query tiles per SM, see the function of this name; None: many.
        long: query tokens see many keys (see `is_long`).
        schedule: take this one instead of choosing.

    Raises:
        UnsupportedSpecError: no schedule can serve it; all reasons are in the message.
    """
    reasons: list[str] = []
    for name in [schedule] if schedule else schedules(problem, rows):
        try:
            return spec_for(problem, name, rows=rows, tiles_per_sm=tiles_per_sm, long=long)
        except UnsupportedSpecError as error:
            reasons += [f"{name}: {reason}" for reason in error.reasons]
    what = f"an attention kernel for a GPU of {problem.arch}"
    raise UnsupportedSpecError(what, list(dict.fromkeys(reasons)))


def all_specs(problem: Problem, schedule: str | None = None) -> list[KernelSpec]:
    """Every spec that some step of the problem takes, none twice; for the rest see `choose`."""
    decodes = [
        (rows, tiles, False)
        for rows in ampere.DECODE_ROWS
        for tiles in (None, *ampere.TILES_PER_SM)
    ]
    few = [(MOST_ROWS, None, long) for long in (False, True)]
    steps = [*decodes, *few, (None, None, False), (None, None, True)]
    specs = (
        choose(problem, rows=rows, tiles_per_sm=tiles, long=long, schedule=schedule)
        for rows, tiles, long in steps
    )
    return list(dict.fromkeys(specs))


def default_tile(
    arch: str,
    schedule: str,
    head_dim_qk: int,
    head_dim_vo: int,
    loader: str,
    variant: Variant,
    *,
    rows: int | None = None,
    tiles_per_sm: int | None = None,
    page_size: int | None = None,
    long: bool = False,
    dtype: str = "bf16",
) -> Tile | None:
    """The row of the architecture's tile table, or None."""
    if schedule in REGISTERED:
        return REGISTERED[schedule].tiles.get((head_dim_qk, head_dim_vo))
    if schedule == HOPPER_TILE:
        return hopper.default_tile(
            head_dim_qk,
            head_dim_vo,
            loader,
            variant,
            rows=rows,
            page_size=page_size,
            long=long,
            dtype=dtype,
        )
    dims = (head_dim_qk, head_dim_vo)
    if schedule == HOPPER_MLA:
        return hopper.mla.default_tile(*dims)
    try:
        return ampere.tiles(
            arch,
            schedule,
            head_dim_qk,
            rows,
            tiles_per_sm=tiles_per_sm,
            turns=turns_bytes(variant, *dims),
            heavy=is_heavy(variant, *dims, rows or 8 if schedule == AMPERE_DECODE else 8),
        )
    except ValueError:  # not in the table
        return None


def geometry(spec: KernelSpec, num_kv_heads: int, band: tuple[int, int]) -> Geometry:
    """What the planner is told of a kernel; `band`: (window_left, window_right) of the step."""
    return Geometry(
        tile_q=spec.tile.q,
        tile_kv=spec.tile.kv,
        group=spec.group,
        num_kv_heads=1 if spec.per_head else num_kv_heads,
        window_left=band[0],
        window_right=band[1],
        heads_in_ids=num_kv_heads if spec.per_head else 0,
    )


class _Emitter(Protocol):
    def supports(self, spec: KernelSpec) -> list[str]: ...
    def emit(self, spec: KernelSpec) -> GeneratedKernel: ...


_EMITTERS: dict[str, _Emitter] = {HOPPER_TILE: hopper, HOPPER_MLA: hopper.mla}
"""Of schedules that are not Ampere's."""


def supports(spec: KernelSpec) -> list[str]:
    """Reasons why no kernel can be generated for `spec`, one line each; empty = it can."""
    if spec.schedule in REGISTERED:
        return REGISTERED[spec.schedule].reasons(spec)
    return _EMITTERS.get(spec.schedule, ampere).supports(spec)


def emit(spec: KernelSpec) -> GeneratedKernel:
    """Source of the spec's kernel.

    Raises:
        UnsupportedSpecError: `supports(spec)` gives reasons against it.
    """
    if spec.schedule in REGISTERED:
        return REGISTERED[spec.schedule].emit(spec)
    return _EMITTERS.get(spec.schedule, ampere).emit(spec)


def bytes_in_flight(spec: KernelSpec) -> int | None:
    """Bytes of K and V that the copies of one block have on their way while it computes; None for
    schedules of users."""
    if spec.schedule in REGISTERED:
        return None
    if spec.schedule == HOPPER_TILE:
        dims = (spec.head_dim_qk, spec.head_dim_vo)
        return hopper.bytes_in_flight(spec.tile, *dims, dtype=spec.dtype)
    if spec.schedule == HOPPER_MLA:
        return hopper.mla.bytes_in_flight(spec.tile)
    return ampere.bytes_in_flight(spec.schedule, spec.tile, spec.head_dim_qk)


def with_tile(spec: KernelSpec, **overrides: Any) -> KernelSpec:
    """`spec` with fields of its tile replaced: q, kv, stages, threads, blocks_per_sm, ..."""
    return replace(spec, tile=replace(spec.tile, **overrides))
