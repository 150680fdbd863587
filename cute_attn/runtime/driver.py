"""The CUDA driver through its C interface (ctypes): one library, a checked call, contexts.

The runtime needs a dozen driver calls, two of them on the hot path with prebuilt argument memory;
calling ``libcuda`` directly does that in about a microsecond and depends on no binding package's
version. Handles are plain ints. Nothing is loaded at import; without a driver `driver` raises and
everything that needs no GPU still works.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from cute_attn.runtime.errors import DriverError

_LIBRARY = "libcuda.so.1"

# CUdevice_attribute and CUfunction_attribute values that the runtime asks for (cuda.h).
DEVICE_ATTRIBUTES = {
    "multiprocessor_count": 16,
    "l2_cache_size": 38,
    "compute_capability_major": 75,
    "compute_capability_minor": 76,
    "max_shared_memory_per_multiprocessor": 81,
    "max_registers_per_multiprocessor": 82,
    "max_shared_memory_per_block_optin": 97,
}
FUNCTION_ATTRIBUTES = {
    "max_threads_per_block": 0,
    "shared_size_bytes": 1,
    "const_size_bytes": 2,
    "local_size_bytes": 3,
    "num_regs": 4,
    "binary_version": 6,
    "max_dynamic_shared_size_bytes": 8,
}


class Driver:
    """``libcuda`` with a checked `call`; ``lib`` gives the raw functions to code that prebuilds its
    arguments.
    """

    def __init__(self, lib: Any) -> None:
        self.lib = lib
        self._contexts: dict[int, ctypes.c_void_p] = {}

    def call(self, function: str, *args: Any) -> None:
        """Call ``function``; raise DriverError with the driver's own words unless it returns
        CUDA_SUCCESS.
        """
        status = getattr(self.lib, function)(*args)
        if status != 0:
            raise DriverError(f"{function}: {self.error_text(status)}", status)

    def error_text(self, status: int) -> str:
        """ "CUDA_ERROR_INVALID_VALUE (1): invalid argument" """
        name, text = ctypes.c_char_p(), ctypes.c_char_p()
        self.lib.cuGetErrorName(status, ctypes.byref(name))
        self.lib.cuGetErrorString(status, ctypes.byref(text))
        return f"{(name.value or b'unknown').decode()} ({status}): {(text.value or b'').decode()}"

    def version(self) -> str:
        """CUDA version that the driver speaks, e.g. "13.0"."""
        number = ctypes.c_int()
        self.call("cuDriverGetVersion", ctypes.byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def device(self, index: int) -> ctypes.c_int:
        """CUdevice of ordinal ``index`` in this process (after CUDA_VISIBLE_DEVICES)."""
        device = ctypes.c_int()
        self.call("cuDeviceGet", ctypes.byref(device), index)
        return device

    def device_attribute(self, name: str, index: int) -> int:
        value = ctypes.c_int()
        device = self.device(index)
        self.call("cuDeviceGetAttribute", ctypes.byref(value), DEVICE_ATTRIBUTES[name], device)
        return value.value

    def current_device(self) -> int:
        """Ordinal of the calling thread's current device; 0 when it has no context yet."""
        if not self._current_context():
            return 0
        current = ctypes.c_int()
        self.call("cuCtxGetDevice", ctypes.byref(current))
        return current.value

    def _current_context(self) -> int | None:
        context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        return context.value

    @contextmanager
    def on_device(self, index: int) -> Iterator[None]:
        """Make the primary context of device ``index`` (the one torch uses) current inside the
        block.
        """
        if self._current_context() and self.current_device() == index:
            yield
            return
        self.call("cuCtxPushCurrent_v2", self.primary_context(index))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def primary_context(self, index: int) -> ctypes.c_void_p:
        """The primary context of device ``index``, retained for the rest of the process."""
        if index not in self._contexts:
            context = ctypes.c_void_p()
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self.device(index))
            self._contexts[index] = context
        return self._contexts[index]


@cache
def driver() -> Driver:
    """The initialised driver.

    Raises:
        DriverError: no ``libcuda`` or no device; ``code`` is None if the library is missing.
    """
    try:
        lib = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise DriverError(
            f"no CUDA driver ({_LIBRARY}): {error}. Compiling works without one; loading and "
            "launching do not"
        ) from error
    found = Driver(lib)
    found.call("cuInit", 0)
    return found


def has_driver() -> bool:
    """Whether `driver` would succeed."""
    try:
        driver()
    except DriverError:
        return False
    return True
