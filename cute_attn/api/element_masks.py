"""Masks within the blocks of a sparse pattern: who reads them, and where they are on a device."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from weakref import WeakKeyDictionary

import torch

from cute_attn.formats import KVFormat
from cute_attn.formats.element_mask import ElementMask
from cute_attn.variants import Variant, custom_mask

_Place = tuple[torch.device, int]
_on_device: WeakKeyDictionary[ElementMask, dict[_Place, dict[str, torch.Tensor]]]
_on_device = WeakKeyDictionary()


@cache
def _reader(per_head: bool) -> Variant:
    return custom_mask(per_head=per_head)


def check_reads_mask(variant: Variant, kv_format: KVFormat) -> None:
    """Raises ValueError if `variant` does not mask by what `kv_format` holds, or by more."""
    assert kv_format.element_mask is not None
    per_head = kv_format.element_mask.begin.ndim == 2
    if variant.mask == _reader(per_head).mask:
        return
    name = f"custom_mask({'per_head=True' if per_head else ''})"
    what = "reads no mask" if variant.mask is None else "masks by something else"
    raise ValueError(
        f"kv_format has a mask of elements, but variant {variant.name!r} {what}; it takes {name},"
        " alone or with hooks on scores"
    )


def with_mask(
    kv_format: KVFormat,
    tensors: Mapping[str, torch.Tensor] | None,
    *,
    group: int,
    device: torch.device,
) -> Mapping[str, torch.Tensor] | None:
    """Tensors of a variant, those of the format's mask among them.

    They are copied to the device once for each mask, which waits for the copy.

    Args:
        kv_format: of the step; without a mask `tensors` is returned.
        tensors: others.
        group: query heads per KV head.
        device: where kernels read them.

    Raises:
        ValueError: `tensors` holds one of the mask's.
    """
    mask = kv_format.element_mask
    if mask is None:
        return tensors
    known = _on_device.setdefault(mask, {})
    if (device, group) not in known:
        arrays = mask.arrays(group).items()
        known[device, group] = {name: torch.from_numpy(x).to(device) for name, x in arrays}
    own = known[device, group]
    if taken := sorted(own.keys() & (tensors or {}).keys()):
        raise ValueError(f"tensors holds {taken[0]!r}, but kv_format has a mask, which gives it")
    return {**own, **(tensors or {})}
