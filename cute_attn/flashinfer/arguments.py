"""Arguments that many calls of this package share: checked, refused, copied to the host."""

from __future__ import annotations

from typing import Any

import torch

from cute_attn.api import checks

KV_LAYOUTS = ("NHD", "HND")
POS_ENCODING_MODES = ("NONE", "ROPE_LLAMA", "ALIBI")
_BACKENDS = ("auto", "fa2", "fa3")
_DTYPES = frozenset((torch.float16, torch.bfloat16, torch.float32))
_ALIGNMENT = 16


def refuse(instead: str, **options: Any) -> None:
    """Raises NotImplementedError for an option that is given.

    Args:
        instead: what to do instead, or why it is not there.
        options: by name; None is not given.
    """
    for name, value in options.items():
        if value is not None:
            shown = f"of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value
            raise NotImplementedError(
                f"{name} is {shown}; cute_attn does not support it: {instead}"
            )


def backend(value: str) -> str:
    """`value`, if it leaves the kernel to us: "auto", "fa2" or "fa3".

    Raises:
        NotImplementedError: another one.
    """
    if value not in _BACKENDS:
        raise NotImplementedError(
            f"backend is {value!r}; cute_attn takes {', '.join(map(repr, _BACKENDS))}, and chooses"
            " among its own kernels by device and lengths"
        )
    return value


def kv_layout(value: str) -> str:
    """`value`, if it is "NHD" or "HND"; else raises ValueError."""
    checks.one_of("kv_layout", value, KV_LAYOUTS)
    return value


def dtype_of(name: str, value: str | torch.dtype) -> torch.dtype:
    """A dtype that is given as itself or by its name.

    Raises:
        TypeError, ValueError: it is none.
        NotImplementedError: there are no kernels for it.
    """
    found = getattr(torch, value, None) if isinstance(value, str) else value
    if not isinstance(found, torch.dtype):
        raise (ValueError if isinstance(value, str) else TypeError)(
            f"{name} is {value!r}; it takes a torch.dtype or the name of one"
        )
    if found not in _DTYPES:
        raise NotImplementedError(
            f"{name} is {found}; cute_attn takes torch.float16 and torch.bfloat16: convert the"
            " tensor to one of them"
        )
    return found


def data_types(
    q_data_type: str | torch.dtype | None,
    kv_data_type: str | torch.dtype | None,
    o_data_type: str | torch.dtype | None,
) -> tuple[torch.dtype, torch.dtype]:
    """(dtype of queries, keys and values, dtype of outputs); what is not given is as the queries'.

    Raises:
        TypeError, ValueError, NotImplementedError: see `dtype_of`; also where keys and queries
            differ.
    """
    dtype = dtype_of("q_data_type", "float16" if q_data_type is None else q_data_type)
    if kv_data_type is not None and dtype_of("kv_data_type", kv_data_type) != dtype:
        raise NotImplementedError(
            f"kv_data_type is {kv_data_type} and q_data_type is {dtype}; cute_attn takes queries"
            " of the cache's dtype: convert one of the two"
        )
    return dtype, dtype if o_data_type is None else dtype_of("o_data_type", o_data_type)


def workspace(name: str, buffer: Any) -> torch.Tensor:
    """`buffer`, if it is a tensor that starts at a multiple of 16 bytes.

    Raises:
        TypeError, ValueError: it is not.
    """
    if not isinstance(buffer, torch.Tensor):
        raise TypeError(f"{name} is a {type(buffer).__name__}; it takes a torch.Tensor")
    if buffer.data_ptr() % _ALIGNMENT:
        raise ValueError(
            f"{name} must be {_ALIGNMENT}-byte aligned; it starts at {buffer.data_ptr():#x}"
        )
    return buffer


def tensor(name: str, value: Any) -> torch.Tensor:
    """`value`, if it is a tensor; else raises TypeError."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it takes a torch.Tensor")
    return value


def to_host(**values: Any) -> list[torch.Tensor]:
    """Index tensors on the host. Those on a device come in one copy, which waits for the device.

    Args:
        values: one-dimensional integer tensors, by the names of the arguments.

    Raises:
        TypeError, ValueError: one is not.
    """
    found = []
    for name, value in values.items():
        if tensor(name, value).dim() != 1:
            raise ValueError(f"{name} has shape {tuple(value.shape)}; it takes one dimension")
        found.append(value)
    there = [value for value in found if value.device.type != "cpu"]
    if there:
        sizes = [value.numel() for value in there]
        copied = iter(torch.split(torch.cat(there).cpu(), sizes))
        found = [value if value.device.type == "cpu" else next(copied) for value in found]
    return found


def factor(*scales: float | torch.Tensor | None) -> float:
    """The product of scales that are given. One on a device is waited for."""
    product = 1.0
    for scale in scales:
        if scale is not None:
            product *= float(scale)
    return product


def paged_cache(cache: Any, layout: str) -> Any:
    """A paged cache as the engine takes it: one tensor, or a pair.

    A dimension of pages may be missing where they hold one key.

    Raises:
        TypeError, NotImplementedError: it is neither, or of a dtype without kernels.
    """
    if isinstance(cache, torch.Tensor) and cache.dim() == 5 and cache.dtype in _DTYPES:
        return cache
    single = -3 if layout == "NHD" else -2
    if isinstance(cache, (tuple, list)):
        parts = (dtyped("paged_kv_cache", part) for part in cache)
        return tuple(part.unsqueeze(single) if part.dim() == 3 else part for part in parts)
    whole = dtyped("paged_kv_cache", cache)
    return whole.unsqueeze(single) if whole.dim() == 4 else whole


def dtyped(name: str, value: Any) -> torch.Tensor:
    """`value`, if it is a tensor of a dtype with kernels.

    Raises:
        TypeError, NotImplementedError: it is not.
    """
    dtype_of(name, tensor(name, value).dtype)
    return value  # type: ignore[no-any-return]
