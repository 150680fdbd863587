"""`KernelSpec`: everything that is compiled into one attention kernel, and nothing else.

Frozen, hashable, printable. What may change from call to call (page size, strides, head counts,
lengths, window, variant scalars) is not in it, so that few cubins serve many calls.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from cute_attn.variants import Variant

E4M3 = "e4m3"
DTYPES = ("bf16", "fp16", E4M3)
LOADERS = ("ragged", "paged", "gather")
ARCHS = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_90a")
TRACED = ("hopper_tile", "ampere_tile", "ampere_decode")
"""Schedules whose kernels can keep time of their items."""
DELAYED = ("hopper_tile", "hopper_mla")
"""Schedules whose kernels can sleep at random."""
PER_HEAD = ("hopper_tile", "ampere_tile", "ampere_decode")
"""Schedules whose kernels can take plans in which every KV head of a request has its own keys."""
LATENT_DIMS = (576, 512)
"""(head_dim_qk, head_dim_vo) of latent rows (multi-head latent attention): 512 columns, which are
the values as well, and 64 rotary ones."""
BLOCK_SMEM = {
    "sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90": 227 << 10,
    "sm_90a": 227 << 10,
}  # fmt: skip
"""Bytes of shared memory that a block may use (CUDA programming guide, compute capabilities)."""
_FP16_MAX = 65504


def element_bytes(dtype: str) -> int:
    """Bytes of an element of q, k and v of a dtype."""
    return 1 if dtype == E4M3 else 2


def has_dependent_launch(arch: str) -> bool:
    """Whether kernels of an architecture can use programmatic dependent launch."""
    return arch.startswith("sm_9")


class UnsupportedSpecError(ValueError):
    """No kernel can be generated for a spec; `reasons` says why, one line each."""

    def __init__(self, what: str, reasons: list[str]) -> None:
        super().__init__(f"cannot generate {what}:\n" + "\n".join(f"  - {r}" for r in reasons))
        self.what = what
        self.reasons = reasons

    def __reduce__(self) -> tuple[type, tuple[str, list[str]]]:
        return type(self), (self.what, self.reasons)  # so that it crosses process borders


@dataclass(frozen=True)
class Tile:
    """Tile shape and resources of one kernel; a row of an architecture's tile table.

    Attributes:
        q: packed query rows per tile.
        kv: keys per KV block.
        stages: depth of the K ring and of the V ring.
        threads: threads per block.
        blocks_per_sm: resident blocks the kernel is built for (launch bounds).
        producer_registers, consumer_registers: `setmaxnreg` values, 0 where warps have no roles.
        q_stages: Q tiles in shared memory (Hopper).
        q_in_registers: consumers read an item's queries once and keep them (Hopper).
    """

    q: int
    kv: int
    stages: int
    threads: int
    blocks_per_sm: int = 1
    producer_registers: int = 0
    consumer_registers: int = 0
    q_stages: int = 1
    q_in_registers: bool = False


@dataclass(frozen=True)
class KernelSpec:
    """One attention kernel.

    Attributes:
        arch: "sm_80", "sm_86", "sm_89", "sm_90" or "sm_90a".
        schedule: the kernel family, e.g. "hopper_tile" (TMA + wgmma, warp-specialised),
            "ampere_tile" (cp.async + mma.sync) or "ampere_decode" (small query tiles, KV split
            over warps).
        dtype: of q, k, v and out: "bf16" or "fp16"; "e4m3" (hopper_tile): of q, k and v, and out is
            bf16.
        head_dim_qk, head_dim_vo: elements.
        loader: how K and V are addressed. "ragged": contiguous rows. "paged": through a page table
            (Hopper: by TMA, page sizes that are a multiple of 16). "gather": Hopper, through a page
            table by cp.async, any page size.
        group: query heads per KV head.
        variant: the hooks.
        tile: a row of the architecture's table.
        delays: debugging aid (Hopper): every warp sleeps for random times between the steps of
            its role, which must not change a bit of the result. See hopper/delays.py.
        trace: the kernel writes time stamps of every item (cute_attn/abi/trace.py); its results are
            the same.
        fixed_pieces: for plans of fixed pieces (ampere_decode): where tiles are cut depends on
            their request alone. See `cute_attn.scheduler.plan_fixed_pieces`.
        per_head: for plans with `heads_in_ids` (cute_attn/abi/plan.py): every KV head of a request
            has its own page table.
    """

    arch: str
    schedule: str
    dtype: str
    head_dim_qk: int
    head_dim_vo: int
    loader: str
    group: int
    variant: Variant
    tile: Tile
    # These are not in the digest: see `name`.
    delays: bool = field(default=False, repr=False)
    fixed_pieces: bool = field(default=False, repr=False)
    per_head: bool = field(default=False, repr=False)
    trace: bool = field(default=False, repr=False)

    @property
    def element_bytes(self) -> int:
        """Of q, k and v."""
        return element_bytes(self.dtype)

    @property
    def latent(self) -> bool:
        """Whether values are the first columns of the keys, and kernels read those alone."""
        return self.schedule == "hopper_mla"

    @property
    def fuses_merge(self) -> bool:
        """Whether the kernel itself merges split tiles, so that no merge kernel follows it."""
        return self.schedule in ("ampere_decode", "hopper_tile", "hopper_mla")

    @property
    def runs_beside(self) -> bool:
        """Whether the kernel can run beside the launch before it (`beside` in its parameters)."""
        return self.schedule == "ampere_decode" and has_dependent_launch(self.arch)

    @property
    def digest(self) -> str:
        """Eight hex digits that tell specs apart, but for what `name` spells out."""
        return hashlib.sha256(repr(self).encode()).hexdigest()[:8]

    @property
    def name(self) -> str:
        """Entry symbol, readable in a profiler."""
        dims = f"d{self.head_dim_qk}"
        if self.head_dim_vo != self.head_dim_qk:
            dims += f"x{self.head_dim_vo}"
        switches = ("delays", "fixed_pieces", "per_head", "trace")
        extra = "".join(f"_{name}" for name in switches if getattr(self, name))
        return (
            f"{self.schedule}_{self.dtype}_{dims}_{self.loader}_g{self.group}"
            f"_{self.variant.name}{extra}_{self.arch}_{self.digest}"
        )

    def basic_reasons(self) -> list[str]:
        """Reasons against this spec that hold on every architecture; empty = none."""
        reasons = []
        if self.arch not in ARCHS:
            reasons.append(f"arch is {self.arch!r}; known: {', '.join(ARCHS)}")
        if self.dtype not in DTYPES:
            reasons.append(f"dtype is {self.dtype!r}; known: {', '.join(DTYPES)}")
        if self.dtype == E4M3 and self.schedule != "hopper_tile":
            reasons.append(
                f"dtype is {E4M3!r}; {self.schedule!r} has no such products, only 'hopper_tile' has"
            )
        if self.loader not in LOADERS:
            reasons.append(f"loader is {self.loader!r}; known: {', '.join(LOADERS)}")
        if self.delays and self.schedule not in DELAYED:
            reasons.append(
                f"delays is True; {self.schedule!r} has none, {' and '.join(DELAYED)} have"
            )
        if self.trace and self.schedule not in TRACED:
            reasons.append(f"trace is True; {self.schedule!r} has none, {', '.join(TRACED)} have")
        if self.fixed_pieces and self.schedule != "ampere_decode":
            reasons.append(
                f"fixed_pieces is True; {self.schedule!r} does not cut tiles itself, only"
                " 'ampere_decode' does"
            )
        if self.per_head and self.schedule not in PER_HEAD:
            reasons.append(
                f"per_head is True; {self.schedule!r} takes one table per request,"
                f" {', '.join(PER_HEAD)} take one for each KV head"
            )
        if self.per_head and self.fixed_pieces:
            reasons.append("per_head and fixed_pieces are True; plans are of one of the two")
        if self.dtype == "fp16" and not self.variant.softmax:
            low, high = self.variant.weights_between() or (0.0, 0.0)
            if max(-low, high) > _FP16_MAX:
                reasons.append(
                    f"dtype is 'fp16', which ends at {_FP16_MAX}, but weights of variant"
                    f" {self.variant.name!r} are between {low:g} and {high:g}: clamp what the"
                    " logits hook returns, or take bf16"
                )
        if self.group < 1:
            reasons.append(f"group is {self.group}; it is num_qo_heads / num_kv_heads, at least 1")
        return reasons
