"""What `cute-attn calibrate` measures: made-up steps, from each of which some constant can be told.

decode   few and many requests, short and long       read rate, start, merge
tiles    dense, full and causal, every head_dim      rate of the products, time between items
pages    the same batch ragged, paged and gathered   what pages cost the products
read     few rows on the tile kernel                 its share of the read rate
beside   prefill and decode at once (Hopper)         what an SM reads that decodes
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from cute_attn.api.dispatch import HOPPER_TILE, Problem
from cute_attn.api.launches import Part, parts_of
from cute_attn.codegen.spec import UnsupportedSpecError
from cute_attn.variants import Variant, causal, full

_KV_HEADS = 8
_TOKENS = 16384
_HEADS = {64: 32, 80: 16, 96: 16, 112: 16, 128: 16, 192: 8, 256: 8}
_LENGTHS = ((512, True), (1024, True), (4096, True), (512, False), (4096, False))
"""Tokens of the sequences of dense prefill, and whether a mask is causal."""
_QUICK_LENGTHS = ((1024, True), (4096, True), (4096, False))
_DECODES = (
    (1024, 1), (1024, 4), (1024, 16), (1024, 64), (1024, 256),
    (8192, 1), (8192, 4), (8192, 16), (8192, 64),
)  # fmt: skip
"""Keys, and requests that have as many."""
_QUICK_DECODES = ((1024, 1), (1024, 64), (8192, 1), (8192, 16))
_RANDOM_DECODES = (16, 64)
"""Requests of up to 8,192 keys."""


@dataclass(frozen=True)
class Sweep:
    """One step that is measured, in bf16.

    Attributes:
        name: for people.
        q_lens, kv_lens: tokens of each request.
        num_qo_heads, num_kv_heads, head_dim: sizes.
        page_size: tokens per page, or None for ragged KV.
        variant: mask.
        schedule: kernel family, or None: chosen by the lengths.
    """

    name: str
    q_lens: tuple[int, ...]
    kv_lens: tuple[int, ...]
    num_qo_heads: int = 32
    num_kv_heads: int = _KV_HEADS
    head_dim: int = 128
    page_size: int | None = 16
    variant: Variant = causal()  # noqa: RUF009 - it cannot be changed
    schedule: str | None = None

    @property
    def kv_bytes(self) -> int:
        """Of K and V."""
        return 4 * self.head_dim * self.num_kv_heads * sum(self.kv_lens)

    @property
    def q_bytes(self) -> int:
        """Of the queries, and of the output."""
        return 2 * self.head_dim * self.num_qo_heads * sum(self.q_lens)

    def parts(self, arch: str, num_sms: int) -> list[Part]:
        """Its launches on a GPU.

        Raises:
            UnsupportedSpecError: there is no kernel for it.
        """
        return parts_of(
            self.q_lens,
            self.kv_lens,
            Problem(
                arch,
                "bf16",
                self.head_dim,
                self.head_dim,
                self.num_qo_heads // self.num_kv_heads,
                self.variant,
                self.page_size,
            ),
            num_kv_heads=self.num_kv_heads,
            num_sms=num_sms,
            schedule=self.schedule,
        )


def sweeps(arch: str, num_sms: int, *, quick: bool = False) -> list[Sweep]:
    """What is measured on a GPU.

    Args:
        arch: of the device, e.g. "sm_90a".
        num_sms: of the device.
        quick: fewer cases, of head_dim 128 alone.
    """
    found = [*_decodes(num_sms, quick), *_dense(quick), *_pages(quick)]
    if arch == "sm_90a":
        found += [_few_rows(), *_beside()]
    return [sweep for sweep in found if _is_served(sweep, arch, num_sms)]


def _is_served(sweep: Sweep, arch: str, num_sms: int) -> bool:
    try:
        return bool(sweep.parts(arch, num_sms))
    except UnsupportedSpecError:
        return False


def _decodes(num_sms: int, quick: bool) -> list[Sweep]:
    few = max(num_sms // _KV_HEADS, 1)  # a tile per SM, none split: no merge
    found = [Sweep(f"decode {few} x 256", (1,) * few, (256,) * few)]
    found += [
        Sweep(f"decode {count} x {keys}", (1,) * count, (keys,) * count)
        for keys, count in (_QUICK_DECODES if quick else _DECODES)
    ]
    rng = random.Random(0)
    for count in () if quick else _RANDOM_DECODES:
        keys = tuple(rng.randint(1, 8192) for _ in range(count))
        found.append(Sweep(f"decode {count} x 1-8192", (1,) * count, keys))
    return found


def _dense(quick: bool) -> list[Sweep]:
    found = []
    for dim in (128,) if quick else _HEADS:
        for length, masked in _QUICK_LENGTHS if quick else _LENGTHS:
            same, heads = (length,) * (_TOKENS // length), _HEADS[dim]
            name = f"dense d{dim} {'causal' if masked else 'full'} {length}"
            variant = causal() if masked else full()
            found.append(Sweep(name, same, same, heads, heads, dim, None, variant))
    return found


def _pages(quick: bool) -> list[Sweep]:
    same, found = (
        (1024,) * 16,
        [Sweep("prompts ragged", (1024,) * 16, (1024,) * 16, page_size=None)],
    )
    for size in (16,) if quick else (16, 1):
        found.append(Sweep(f"prompts in pages of {size}", same, same, page_size=size))
    return found


def _few_rows() -> Sweep:
    """Decode of four tokens each on the tile kernel, which then waits for memory."""
    return Sweep(
        "few rows 16 x 8192", (4,) * 16, (8192,) * 16, num_qo_heads=64, schedule=HOPPER_TILE
    )


def _beside() -> list[Sweep]:
    made = (
        ("beside 2048 at 8192 + 128 x 4096", ((2048, 8192),), 128, 4096),
        ("beside 1024 at 1024 + 128 x 2048", ((1024, 1024),), 128, 2048),
    )
    found = []
    for name, prefill, count, keys in made:
        q_lens, kv_lens = zip(*prefill, *[(1, keys)] * count, strict=True)
        found.append(Sweep(name, q_lens, kv_lens))
    return found
