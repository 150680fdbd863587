"""One step, checked: what the two back ends of `BatchAttention` plan and run.

A `Step` has its lengths on the host, a `DeviceStep` on the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from cute_attn.api import checks
from cute_attn.api.element_masks import check_reads_mask
from cute_attn.formats import DeviceKV, KVFormat
from cute_attn.scheduler import RequestBatch, Visible
from cute_attn.variants import Variant


class KVKind(NamedTuple):
    """What of a KV format decides about the kernel.

    Attributes:
        page_size: tokens per page; None for ragged KV.
        per_head: every KV head has tables of its own.
    """

    page_size: int | None
    per_head: bool

    def __str__(self) -> str:
        pages = "ragged KV" if self.page_size is None else f"pages of {self.page_size} tokens"
        return f"{pages}, a table for each KV head" if self.per_head else pages


@dataclass(frozen=True)
class AnyStep:
    """What run() has to know of a batch.

    Attributes:
        q_rows: query rows, qo_indptr[-1].
        kv_format: where the keys are.
        kv_needed: ragged: KV rows; paged: 1 + the largest page number, or 0 if it is not known on
            the host.
        scalars: values of the variant's scalars.
        band: (window_left, window_right) that follow from them.
    """

    q_rows: int
    kv_format: KVFormat
    kv_needed: int
    scalars: dict[str, float | int]
    band: tuple[int, int]

    @property
    def page_size(self) -> int | None:
        """Tokens per page; None for ragged KV."""
        return self.kv_format.page_size if self.kv_format.paged else None

    @property
    def kv_kind(self) -> KVKind:
        """What the kernel depends on."""
        return KVKind(self.page_size, per_head=self.kv_format.heads_in_ids > 0)


@dataclass(frozen=True)
class Step(AnyStep):
    """A batch, ready to be planned.

    Attributes:
        requests: lengths and addresses, in the caller's order.
        page_table: (entries,) int32 host array, an int32 CUDA tensor read as flat memory, or None
            (ragged).
        visible: of a mask that empties KV blocks within the band.
    """

    requests: RequestBatch
    page_table: Any
    visible: Visible | None


@dataclass(frozen=True)
class DeviceStep(AnyStep):
    """A batch, ready to be planned on the device.

    Attributes:
        kv_format: as in `AnyStep`.
        q_len: query tokens of every request.
    """

    kv_format: DeviceKV
    q_len: int


def make_step(
    qo_indptr: Any,
    kv_format: KVFormat,
    variant: Variant,
    scalars: dict[str, float | int] | None,
    device: torch.device,
    expected: Mapping[str, Any] | None = None,
) -> Step:
    """Checks the arguments of `BatchAttention.plan` against each other.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes.
    """
    if not isinstance(kv_format, KVFormat):
        raise TypeError(
            f"kv_format is a {type(kv_format).__name__}; it takes RaggedKV, PagedKV, BlockTableKV,"
            " BlockSparseKV or PerHeadKV"
        )
    if isinstance(kv_format, DeviceKV):
        raise TypeError(
            "kv_format is a DeviceKV, whose lengths are on the device; it takes lengths on the host"
            " (or call plan_on_device)"
        )
    if not kv_format.has_positions:
        _check_reads_no_position(kv_format, variant)
    rows = kv_format.query_rows(qo_indptr)
    values, band = band_of(variant, scalars)
    return Step(
        requests=RequestBatch(
            rows.start,
            rows.length,
            kv_format.kv_start,
            kv_format.kv_len,
            kv_format.q_pos,
            kv_format.kv_pos,
            common_keys=0 if kv_format.has_positions else kv_format.num_rows,
        ),
        q_rows=rows.total,
        kv_format=kv_format,
        page_table=_page_table(kv_format, device),
        kv_needed=_kv_needed(kv_format),
        scalars=values,
        band=band,
        visible=variant.visible(values, expected),
    )


def _check_reads_no_position(kv_format: KVFormat, variant: Variant) -> None:
    """Raises ValueError for a variant that means positions, which keys of the format have not."""
    if kv_format.element_mask is not None:
        check_reads_mask(variant, kv_format)
    elif variant.mask is not None:
        raise ValueError(
            f"variant {variant.name!r} masks by position, but keys have none in"
            f" {type(kv_format).__name__}; it takes variants without a mask, e.g. 'full'"
        )
    by_position = [role for role, hook in variant.vector_hooks.items() if hook.reads("pos")]
    if by_position:
        raise ValueError(
            f"variant {variant.name!r} transforms the {by_position[0]} by position, but keys have"
            f" none in {type(kv_format).__name__}; it takes variants that read no position"
        )


def make_device_step(
    kv_format: DeviceKV,
    q_len: int,
    variant: Variant,
    scalars: dict[str, float | int] | None,
    device: torch.device,
) -> DeviceStep:
    """Checks the arguments of `BatchAttention.plan_on_device`, without a look at numbers.

    Raises:
        TypeError, ValueError: naming the argument, what it holds and what it takes.
    """
    if not isinstance(kv_format, DeviceKV):
        raise TypeError(
            f"kv_format is a {type(kv_format).__name__}; it takes a DeviceKV (plan() takes lengths"
            " on the host)"
        )
    checks.positive("q_len", q_len)
    for name, tensor in kv_format.tensors.items():
        if tensor.device != device:
            raise TypeError(f"{name} is on device {tensor.device}; it takes {device}")
    if kv_format.num_requests == 0:
        raise ValueError("kv_format has no requests; plan_on_device() takes at least 1")
    values, band = band_of(variant, scalars)
    return DeviceStep(
        q_rows=kv_format.num_requests // max(kv_format.heads_in_ids, 1) * q_len,
        kv_format=kv_format,
        kv_needed=kv_format.num_rows,
        scalars=values,
        band=band,
        q_len=q_len,
    )


def band_of(
    variant: Variant, scalars: dict[str, float | int] | None
) -> tuple[dict[str, float | int], tuple[int, int]]:
    """Values of the variant's scalars, and the (left, right) limits of its band."""
    values = variant.values(scalars)
    left, right = variant.band.resolve(values)
    for name, limit in (("left", left), ("right", right)):
        if limit < 0:
            raise ValueError(f"the band of variant {variant.name!r} has {name} limit {limit}; >= 0")
    return values, (left, right)


def _kv_needed(kv_format: KVFormat) -> int:
    if not kv_format.paged:
        return kv_format.num_rows
    return 0 if kv_format.max_page is None else kv_format.max_page + 1


def _page_table(kv_format: KVFormat, device: torch.device) -> Any:
    """The part of the table in use if it is on the host, else the device tensor as it is."""
    if not kv_format.paged:
        return None
    table = kv_format.page_table
    if kv_format.table_on_host:
        return table[: kv_format.table_end()]
    if table.device != device:
        raise TypeError(f"the page table is on {table.device}; it takes {device} or the host")
    return table
