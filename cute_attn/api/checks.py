"""Checks of arguments, with messages that name the argument, what it is and what is taken.

Everything here runs before anything is launched. A wrong kind of object, dtype or device raises
TypeError, a wrong shape, stride or number ValueError.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.utils.dlpack

DTYPE_NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}
E4M3 = torch.float8_e4m3fn
KERNEL_DTYPES = {**DTYPE_NAMES, E4M3: "e4m3"}
"""Of q, k and v of attention kernels; see `out_dtype`."""


def out_dtype(dtype: torch.dtype) -> torch.dtype:
    """Of outputs for queries of a dtype."""
    return torch.bfloat16 if dtype == E4M3 else dtype


VECTOR_BYTES = 16
"""Kernels load rows in pieces of 16 bytes, so addresses and strides are multiples of it."""
MAX_STRIDE = (1 << 31) - 1
"""Elements: kernels multiply page and row numbers with strides of 32 bits."""


def tensor(
    name: str,
    value: Any,
    *,
    dims: Sequence[tuple[str, int | None]],
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """`value`, if it is a tensor of this shape, dtype and device.

    Args:
        name: of the argument.
        value: to check.
        dims: (name, size) per dimension; a size of None takes any.
        dtype: wanted.
        device: wanted.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"{name} is a {type(value).__name__}; it takes a torch.Tensor")
    shape = "(" + ", ".join(n if s is None else f"{n} = {s}" for n, s in dims) + ")"
    if value.dim() != len(dims):
        raise ValueError(
            f"{name} has {value.dim()} dimensions, shape {tuple(value.shape)}; it takes {shape}"
        )
    for axis, (dim, size) in enumerate(dims):
        if size is not None and value.shape[axis] != size:
            raise ValueError(
                f"{name} has shape {tuple(value.shape)}: {dim} is {value.shape[axis]};"
                f" it takes {shape}"
            )
    if value.dtype != dtype:
        raise TypeError(f"{name} has dtype {value.dtype}; it takes {dtype}")
    if value.device != device:
        raise TypeError(f"{name} is on device {value.device}; it takes {device}")
    return value


def no_gradients(**values: Any) -> None:
    """Raises RuntimeError for a tensor whose gradient autograd would miss.

    Call it where grad mode is on: asking that first is all that inference pays.
    """
    for name, value in values.items():
        if value is not None and value.requires_grad:
            raise RuntimeError(
                f"{name} requires grad, and there is no backward: call under torch.no_grad() or"
                " torch.inference_mode(), or train with"
                " torch.nn.functional.scaled_dot_product_attention"
            )


def from_dlpack(**values: Any) -> dict[str, Any]:
    """`values` with arrays of other libraries (NumPy, CuPy, JAX) as tensors of the same memory.

    They are read in the order of torch's current stream, as the DLPack protocol sees to.

    Raises:
        TypeError: one is neither a tensor nor None, and has no `__dlpack__` or cannot be taken.
    """
    found = {}
    for name, value in values.items():
        if value is not None and not isinstance(value, torch.Tensor):
            kind = type(value).__name__
            if not hasattr(value, "__dlpack__"):
                raise TypeError(
                    f"{name} is a {kind}; it takes a torch.Tensor, or an array with __dlpack__"
                )
            try:
                value = torch.utils.dlpack.from_dlpack(value)
            except (BufferError, RuntimeError, TypeError, ValueError) as error:
                raise TypeError(f"{name} is a {kind} that torch cannot take: {error}") from error
        found[name] = value
    return found


def vector_rows(name: str, value: torch.Tensor) -> None:
    """Raises unless the last dimension is contiguous and every row starts at 16 bytes."""
    if value.numel() == 0:
        return
    strides = value.stride()
    if strides[-1] != 1 and value.shape[-1] > 1:
        raise ValueError(
            f"{name} has strides {strides}; the last dimension must be contiguous (stride 1)"
        )
    step = VECTOR_BYTES // value.element_size()
    for axis, (size, stride) in enumerate(zip(value.shape[:-1], strides[:-1], strict=True)):
        if size > 1 and (stride % step or stride < 0):
            raise ValueError(
                f"{name} has strides {strides}; the stride of dimension {axis} must be a multiple"
                f" of {step} elements ({VECTOR_BYTES} bytes)"
            )
        if size > 1 and stride > MAX_STRIDE:
            raise ValueError(
                f"{name} has strides {strides}; the stride of dimension {axis} must be at most"
                f" {MAX_STRIDE} elements"
            )
    if value.data_ptr() % VECTOR_BYTES:
        raise ValueError(
            f"{name} starts at {value.data_ptr():#x}; its address must be a multiple of"
            f" {VECTOR_BYTES} bytes"
        )


def contiguous(name: str, value: torch.Tensor) -> None:
    """Raises unless `value` is contiguous."""
    if not value.is_contiguous():
        raise ValueError(
            f"{name} has shape {tuple(value.shape)} and strides {value.stride()}; it must be"
            " contiguous"
        )


def one_of(name: str, value: Any, known: Sequence[Any]) -> None:
    """Raises unless `value` is among `known`."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it takes {' or '.join(map(repr, known))}")


def positive(name: str, value: Any) -> int:
    """`value`, if it is an integer of at least 1."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it takes an integer")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return value


def scale(name: str, value: Any) -> None:
    """Raises ValueError unless `value` is a positive finite number."""
    if not (math.isfinite(value) and value > 0):
        raise ValueError(f"{name} is {value}; it takes a positive finite number")


def head_counts(num_qo_heads: int, num_kv_heads: int) -> int:
    """The group, num_qo_heads / num_kv_heads."""
    positive("num_qo_heads", num_qo_heads)
    positive("num_kv_heads", num_kv_heads)
    if num_qo_heads % num_kv_heads:
        raise ValueError(
            f"num_qo_heads is {num_qo_heads}, which num_kv_heads = {num_kv_heads} does not divide"
        )
    return num_qo_heads // num_kv_heads


def device_of(value: Any) -> torch.device:
    """A device with an index: "cuda" is the current one, None is "cuda" where there is a GPU."""
    if value is None:
        value = "cuda" if torch.cuda.is_available() else "cpu"
    device = torch.device(value)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device}; it takes 'cuda' or 'cpu'")
    if str(device) == "cuda":
        device = torch.device("cuda", torch.cuda.current_device())
    return device
