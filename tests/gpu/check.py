"""Runs a grid case twice and compares it with the float64 oracle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from cute_attn import BatchAttention, Problem
from tests.gpu import oracle64
from tests.gpu.batches import DTYPES, Batch, make_batch, variant_of
from tests.gpu.grid import LENGTHS, SMALL_ROWS, Case

BOUNDS = {"bf16": 4e-3, "fp16": 6e-4}
ROW_BOUND = 2e-2
LSE_BOUND = 1e-3


@dataclass(frozen=True)
class Errors:
    """What a run differs by from the oracle; the bounds are those of its dtype."""

    err: float
    row: float
    lse: float
    empty_exact: bool
    same_bits: bool
    guards_intact: bool
    bound: float
    lse_bound: float

    def failures(self) -> list[str]:
        """What is wrong; empty = nothing."""
        wrong = []
        for name, value, limit in (
            ("Frobenius-relative error", self.err, self.bound),
            ("worst row error", self.row, ROW_BOUND),
            ("lse error", self.lse, self.lse_bound),
        ):
            if not value <= limit:  # NaN must fail
                wrong.append(f"{name} {value:.3g} > {limit:.3g}")
        if not self.empty_exact:
            wrong.append("rows that see no key are not exactly 0 and -inf (or others are)")
        if not self.same_bits:
            wrong.append("a second run of the same inputs gave other bits")
        if not self.guards_intact:
            wrong.append("memory around out or lse was written")
        return wrong

    def row_of(self) -> dict[str, Any]:
        """For the records."""
        return {"err": self.err, "row_err": self.row, "lse_err": self.lse}


def default_schedule(case: Case, q_lens: list[int], arch: str) -> str:
    """What the dispatcher takes by itself."""
    if max(q_lens) * case.family.group <= SMALL_ROWS and not case.family.is_hopper_only:
        return "ampere_decode"
    return "hopper_tile" if arch == "sm_90a" else "ampere_tile"


def problem_of(case: Case, arch: str) -> Problem:
    """The case as the dispatcher sees it."""
    family = case.family
    return Problem(
        arch=arch,
        dtype=family.dtype,
        head_dim_qk=family.head_dim,
        head_dim_vo=family.head_dim_vo,
        group=family.group,
        variant=variant_of(case.variant),
        page_size=case.page_size or None,
    )


def attention_of(
    case: Case, batch: Batch, device: torch.device, arch: str | None
) -> BatchAttention:
    """The wrapper that serves a case: its kernel by choice if it is the default one, else forced.

    Args:
        arch: of the device; None on the CPU.
    """
    forced = arch is not None and default_schedule(case, batch.q_lens, arch) != case.schedule
    options: dict[str, Any] = {
        "head_dim_vo": case.family.head_dim_vo,
        "dtype": DTYPES[case.family.dtype],
        "variant": variant_of(case.variant),
        "kv_layout": case.layout,
        "device": device,
        "schedule": case.schedule if forced else None,
    }
    sizes = (case.num_qo_heads, case.num_kv_heads, case.family.head_dim)
    if arch is None:
        return BatchAttention(*sizes, **options)
    size = BatchAttention(*sizes, **options).workspace_size(case.page_size or None)
    workspace = torch.full((size,), 0xFF, dtype=torch.uint8, device=device)  # NaN as float32
    return BatchAttention(*sizes, **options, workspace=workspace)


CANARY = {torch.bfloat16: 0x7FDB, torch.float16: 0x7EDB, torch.float32: 0x7FC0DB0D}
"""Bits of a NaN that no arithmetic makes: a NaN that a kernel writes is another one."""


class Output:
    """`out` (and lse) inside of larger tensors of canaries, which every run must leave alone."""

    def __init__(self, case: Case, batch: Batch) -> None:
        tokens, device = sum(batch.q_lens), batch.q.device
        heads, dim = case.num_qo_heads, case.family.head_dim_vo
        pad = 1 if case.memory == "strided" else 0
        self.whole = canaries((tokens + 4, heads + pad, dim + 8 * pad), batch.q.dtype, device)
        self.out = self.whole[2 : tokens + 2, :heads, :dim]
        self.whole_lse = canaries((tokens + 4, heads), torch.float32, device)
        self.lse = self.whole_lse[2 : tokens + 2] if case.lse else None

    def intact(self) -> bool:
        """Whether everything around out and lse is untouched. Call it last: it erases both."""
        for x in (self.out, self.lse):
            if x is not None:
                as_integers(x).fill_(CANARY[x.dtype])
        return all(
            bool((as_integers(x) == CANARY[x.dtype]).all()) for x in (self.whole, self.whole_lse)
        )


def canaries(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor full of them."""
    whole = torch.empty(shape, dtype=dtype, device=device)
    as_integers(whole).fill_(CANARY[dtype])
    return whole


def as_integers(x: torch.Tensor) -> torch.Tensor:
    """A view of the bits, so that NaN is equal to itself and -0 is not 0."""
    return x.view(torch.int16 if x.element_size() == 2 else torch.int32)


def wanted(case: Case, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """Output and lse of a case by the oracle."""
    return oracle64.attend_batch(
        batch.q,
        batch.q_lens,
        batch.keys,
        batch.values,
        causal="causal" in case.variant,
        **batch.oracle_options,
    )


def check_case(
    case: Case, device: torch.device, arch: str | None, longest: int = LENGTHS[-1]
) -> tuple[Errors, BatchAttention]:
    """Plans and runs a case twice, and measures it.

    Args:
        device: where.
        arch: of the device; None on the CPU.
        longest: cuts lengths.

    Returns:
        errors, and the wrapper that ran (for its plan and kernels).
    """
    batch = make_batch(case, device, longest)
    wrapper = attention_of(case, batch, device, arch)
    rows = None if case.table == "bsr" else batch.qo_indptr
    wrapper.plan(rows, batch.kv_format, scalars=batch.scalars)
    outputs = []
    for _ in range(2):
        output = Output(case, batch)
        wrapper.run(batch.q, *batch.kv, out=output.out, lse=output.lse)
        outputs.append(output)
    first, second = outputs
    same = torch.equal(as_integers(first.out), as_integers(second.out))
    if first.lse is not None and second.lse is not None:
        same = same and torch.equal(as_integers(first.lse), as_integers(second.lse))
    want, want_lse = wanted(case, batch)
    err, row, far, exact = oracle64.errors(first.out, first.lse, want, want_lse)
    found = Errors(
        err=err,
        row=row,
        lse=far,
        empty_exact=exact,
        same_bits=same,
        guards_intact=first.intact() and second.intact(),
        bound=BOUNDS[case.family.dtype],
        lse_bound=LSE_BOUND,
    )
    return found, wrapper
