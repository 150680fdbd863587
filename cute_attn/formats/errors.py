"""Checks of index arrays, with errors that name the argument, what it got and what it takes.

Arrays may be lists, NumPy arrays or tensors (duck-typed: torch is never imported). Lengths must be
on the host, because planning needs them; page numbers may stay on a device.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int32]
Int64Array = npt.NDArray[np.int64]

INT32_MAX = (1 << 31) - 1


def device_type(value: Any) -> str:
    """ "cpu", "cuda" ...; whatever has no device is on the host."""
    return str(getattr(getattr(value, "device", None), "type", "cpu"))


def host_integers(name: str, value: Any, ndim: int = 1) -> Int64Array:
    """`value` as an int64 array on the host.

    Raises:
        TypeError: not integers, or on a device.
        ValueError: wrong rank.
    """
    return np.ascontiguousarray(_host_array(name, value, ndim), dtype=np.int64)


def _host_array(name: str, value: Any, ndim: int) -> npt.NDArray[Any]:
    """`value` as an integer array on the host, of the type it has."""
    if type(value) is not np.ndarray and device_type(value) != "cpu":
        raise TypeError(
            f"{name} is on device {value.device}; it takes a host array (list, NumPy array or CPU "
            "tensor): planning reads it, and a copy from the device would wait for the device"
        )
    array = np.asarray(value)
    if array.size == 0 and not hasattr(value, "dtype"):
        array = array.astype(np.int64)  # NumPy makes an empty list float64
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}; it takes integers")
    if array.ndim != ndim:
        raise ValueError(f"{name} has shape {array.shape}; it takes a {ndim}-D array")
    return array


def indptr(name: str, value: Any) -> Int64Array:
    """`value` as a CSR row pointer: begins with 0, never decreases, ends below 2^31."""
    array = host_integers(name, value)
    if array.size == 0:
        raise ValueError(f"{name} is empty; it takes num_requests + 1 numbers, the first one 0")
    if array[0] != 0:
        raise ValueError(f"{name}[0] is {array[0]}; it must be 0")
    falls = array[1:] < array[:-1]
    if np.count_nonzero(falls):  # a fraction of the time of any()
        at = int(falls.argmax())
        raise ValueError(
            f"{name} decreases: {name}[{at}] is {array[at]} and {name}[{at + 1}] is "
            f"{array[at + 1]}; it must never decrease"
        )
    if array[-1] > INT32_MAX:
        raise ValueError(f"{name}[-1] is {array[-1]}; at most {INT32_MAX} are taken")
    return array


def page_numbers(name: str, value: Any, ndim: int) -> tuple[Any, bool]:
    """(page numbers, are they on the host?).

    On the host any integer type is taken and becomes a contiguous int32 array (no copy if it is one
    already). On a device they are used in place, so they must be int32 with unit stride in the last
    dimension.
    """
    if device_type(value) == "cpu":
        array = _host_array(name, value, ndim)
        if array.dtype == np.int32:
            return np.ascontiguousarray(array), True
        narrow = array.astype(np.int32, order="C")
        if not np.array_equal(narrow, array):
            at = int((narrow != array).reshape(-1).argmax())
            raise ValueError(f"{name} holds {array.reshape(-1)[at]}; page numbers must fit 32 bits")
        return narrow, True
    if "int32" not in str(value.dtype) or "uint" in str(value.dtype):
        raise TypeError(f"{name} on {value.device} has dtype {value.dtype}; kernels read int32")
    if len(value.shape) != ndim:
        raise ValueError(f"{name} has shape {tuple(value.shape)}; it takes a {ndim}-D array")
    if value.shape[-1] > 1 and value.stride(-1) != 1:
        raise ValueError(f"{name} has stride {value.stride(-1)} in its last dimension; it takes 1")
    return value, False


def positive(name: str, value: Any) -> int:
    """`value` as an int of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; it takes an integer")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1")
    return int(value)


def one_of(name: str, value: Any, known: tuple[str, ...]) -> str:
    """`value` if it is one of the known words."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; it takes {' or '.join(map(repr, known))}")
    return str(value)
