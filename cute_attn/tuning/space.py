"""Tiles that a kernel may have, enumerated from the emitters' equations: none that cannot run.

Of the Hopper kernel: consumer warpgroups, keys per block, where queries are kept (two tiles; one;
registers) and the ring as deep as shared memory holds, at least two stages, and one stage less. Of
the Ampere kernels: rows, warps, keys, stages and blocks per SM.
"""

from __future__ import annotations

from collections.abc import Iterator

from cute_attn.ampere.tiles import DECODE, bytes_in_flight, tile_reasons
from cute_attn.codegen.spec import KernelSpec, Tile
from cute_attn.hopper import equations as hopper
from cute_attn.hopper.tiles import HOOK_REGISTERS

_MOST_STAGES = 6
_MOST_HOPPER_STAGES = 4  # of more than one consumer warpgroup: more bring nothing
_WIDE_QUERIES = 192  # head_dim from which a lone Q tile in shared memory is worth a try
# setmaxnreg of producer and consumers by consumer warpgroups: what the launch leaves them.
_HOPPER_REGISTERS = {1: (72, 240), 2: (40, 232), 3: (32, 160)}
_LEAST_HOPPER_KEYS = 48
_TILE_KEYS = (32, 48, 64, 80, 96, 128)
_TILE_THREADS = (64, 128, 256)
_DECODE_WARPS = (2, 3, 4, 6, 8, 12, 16)
_LEAST_IN_FLIGHT, _MOST_IN_FLIGHT = 48 << 10, 144 << 10
"""Bytes that the decode blocks of an SM read ahead: fewer leave memory idle, more bring nothing."""
_MOST_BLOCKS = 6


def tiles_of(spec: KernelSpec) -> list[Tile]:
    """Tiles with which the kernel of a spec can run, by the equations; that of `spec` is among them
    only if it is one of the grid."""
    if spec.schedule == "hopper_tile":
        return list(_hopper(spec))
    if spec.schedule == DECODE:
        return list(_decode(spec))
    return list(_ampere(spec))


def _hopper(spec: KernelSpec) -> Iterator[Tile]:
    dims, variant = (spec.head_dim_qk, spec.head_dim_vo), spec.variant
    if variant.vector_hooks:  # their table follows from registers alone
        return
    need = hopper.MASK_REGISTERS if variant.mask else hopper.WORKING_REGISTERS
    need = HOOK_REGISTERS if variant.logits else need
    for number, (producer, consumer) in _HOPPER_REGISTERS.items():
        if number == 3 and spec.loader != "ragged":  # page numbers take more than 32 registers
            continue
        for keys in range(_LEAST_HOPPER_KEYS, 257, 16):
            for q_stages, kept in ((2, False), (1, False), (1, True)):
                if (q_stages, kept) == (1, False) and dims[0] < _WIDE_QUERIES:
                    continue
                fitting = []
                for stages in range(2, (_MOST_STAGES if number == 1 else _MOST_HOPPER_STAGES) + 1):
                    tile = Tile(
                        q=64 * number,
                        kv=keys,
                        stages=stages,
                        threads=128 * (number + 1),
                        producer_registers=producer,
                        consumer_registers=consumer,
                        q_stages=q_stages,
                        q_in_registers=kept,
                    )
                    registers = hopper.fragment_registers(tile, *dims) + need
                    if registers > consumer or hopper.tile_reasons(tile, *dims, variant):
                        continue
                    fitting.append(tile)
                yield from fitting[-2:]


def _ampere(spec: KernelSpec) -> Iterator[Tile]:
    for threads in _TILE_THREADS:
        for rows in (threads // 2, threads):
            for keys in _TILE_KEYS:
                for stages in (1, 2, 3):
                    yield from _fullest(spec, rows, keys, stages, threads)


def _fullest(spec: KernelSpec, rows: int, keys: int, stages: int, threads: int) -> Iterator[Tile]:
    """With as many blocks per SM as fit, and one less."""
    fitting = []
    for blocks in range(1, _MOST_BLOCKS + 1):
        tile = Tile(q=rows, kv=keys, stages=stages, threads=threads, blocks_per_sm=blocks)
        if not tile_reasons(spec.arch, spec.schedule, tile, spec.head_dim_qk):
            fitting.append(tile)
    yield from fitting[-2:]


def _decode(spec: KernelSpec) -> Iterator[Tile]:
    dim = spec.head_dim_qk
    for warps in _DECODE_WARPS:
        for stages in range(2, _MOST_STAGES + 1):
            for blocks in range(1, _MOST_BLOCKS + 1):
                tile = Tile(
                    q=spec.tile.q, kv=64, stages=stages, threads=32 * warps, blocks_per_sm=blocks
                )
                ahead = blocks * bytes_in_flight(spec.schedule, tile, dim)
                if not _LEAST_IN_FLIGHT <= ahead <= _MOST_IN_FLIGHT:
                    continue
                if not tile_reasons(spec.arch, spec.schedule, tile, dim):
                    yield tile
