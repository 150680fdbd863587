"""A cubin in the driver: loaded once per process on first need, limits per device, thread-safe.

The library is context-independent (``cuLibraryLoadData``), so one `Module` serves every GPU of the
process. Loading waits for the driver; do it (`Module.load`) before a CUDA graph capture begins.
"""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass

from cute_attn.runtime.device import device_info, supports_arch
from cute_attn.runtime.driver import FUNCTION_ATTRIBUTES, Driver, driver
from cute_attn.runtime.errors import DriverError


@dataclass(frozen=True)
class KernelAttributes:
    """What the driver says about a loaded kernel on one device; sizes in bytes,
    ``local_size_bytes`` per thread.
    """

    num_regs: int
    shared_size_bytes: int
    local_size_bytes: int
    const_size_bytes: int
    max_threads_per_block: int
    max_dynamic_shared_size_bytes: int


class Module:
    """One cubin and its entry ``name``, built for ``arch``."""

    def __init__(self, cubin: bytes, name: str, arch: str) -> None:
        self.name = name
        self.arch = arch
        self._cubin = cubin
        self._lock = threading.Lock()
        self._library = ctypes.c_void_p()
        self._kernel = 0
        self._smem_limit: dict[int, int] = {}  # device -> dynamic shared memory allowed so far

    @property
    def loaded(self) -> bool:
        return self._kernel != 0

    def load(self) -> int:
        """The CUkernel handle, loading the cubin at the first call.

        Raises:
            DriverError: no driver, or the driver refuses the cubin.
        """
        if self._kernel:
            return self._kernel
        cuda = driver()
        with self._lock:
            if not self._kernel:
                self._load_library(cuda)
                kernel = ctypes.c_void_p()
                cuda.call(
                    "cuLibraryGetKernel", ctypes.byref(kernel), self._library, self.name.encode()
                )
                self._kernel = kernel.value or 0
        return self._kernel

    def _load_library(self, cuda: Driver) -> None:
        none = (None, None, 0)  # no JIT options, no library options
        library = ctypes.byref(self._library)
        try:
            cuda.call("cuLibraryLoadData", library, self._cubin, *none, *none)
        except DriverError as error:
            version = cuda.version()
            raise DriverError(
                f"kernel {self.name} for {self.arch} does not load: {error}. The driver speaks "
                f"CUDA {version}; it takes cubins of compilers up to its own major version",
                error.code,
            ) from error

    def unload(self) -> None:
        """Free the driver's copy; no `Launcher` of this module may be used after."""
        with self._lock:
            if self._kernel:
                self._kernel = 0
                self._smem_limit.clear()
                driver().call("cuLibraryUnload", self._library)
                self._library = ctypes.c_void_p()

    def attributes(self, device: int = 0) -> KernelAttributes:
        """Registers, memory and limits of the kernel on GPU ``device``."""
        return KernelAttributes(
            **{
                name: self._attribute(FUNCTION_ATTRIBUTES[name], device)
                for name in KernelAttributes.__dataclass_fields__
            }
        )

    def _attribute(self, attribute: int, device: int) -> int:
        value = ctypes.c_int()
        cuda = driver()
        kernel = ctypes.c_void_p(self.load())
        with cuda.on_device(device):
            cuda.call(
                "cuKernelGetAttribute", ctypes.byref(value), attribute, kernel, cuda.device(device)
            )
        return value.value

    def prepare(self, smem_bytes: int, device: int = 0) -> None:
        """Load onto GPU ``device`` and allow ``smem_bytes`` of dynamic shared memory there.

        After this a launch loads nothing any more, which a CUDA graph capture would not allow.

        Raises:
            DriverError: the GPU cannot run the cubin or has less shared memory per block.
        """
        if self._smem_limit.get(device, -1) >= smem_bytes:
            return
        info = device_info(device)
        reasons = supports_arch(self.arch, info.arch)
        if reasons:
            raise DriverError(f"kernel {self.name} cannot run on {info.name}: {reasons[0]}")
        if smem_bytes > info.smem_per_block_optin:
            raise DriverError(
                f"kernel {self.name} wants smem_bytes={smem_bytes} per block; {info.name} has "
                f"{info.smem_per_block_optin}"
            )
        kernel = ctypes.c_void_p(self.load())
        attribute = FUNCTION_ATTRIBUTES["max_dynamic_shared_size_bytes"]
        cuda = driver()
        with self._lock, cuda.on_device(device):
            if self._smem_limit.get(device, -1) < smem_bytes:
                # Lazy loading ends here: this puts the code into the device's context.
                cuda.call("cuKernelGetFunction", ctypes.byref(ctypes.c_void_p()), kernel)
                cuda.call(
                    "cuKernelSetAttribute", attribute, smem_bytes, kernel, cuda.device(device)
                )
                self._smem_limit[device] = smem_bytes

    def max_blocks_per_sm(self, block_threads: int, smem_bytes: int, device: int = 0) -> int:
        """Resident blocks per SM at this block size and dynamic shared memory, by the driver's
        occupancy query.
        """
        self.prepare(smem_bytes, device)
        blocks = ctypes.c_int()
        cuda = driver()
        with cuda.on_device(device):
            cuda.call(
                "cuOccupancyMaxActiveBlocksPerMultiprocessor",
                ctypes.byref(blocks),
                ctypes.c_void_p(self.load()),
                block_threads,
                ctypes.c_size_t(smem_bytes),
            )
        return blocks.value
