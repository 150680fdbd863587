"""One launch path: prebuilt configuration, one parameter struct by address, microseconds.

The kernel takes a single ``const __grid_constant__`` struct. The caller packs it in a `ParamsBlock`
(128-byte aligned, so that tensor maps may sit at its start) and hands its address to
`Launcher.launch`. The driver copies the struct during the call: the block may be changed as soon as
`launch` returns, also under graph capture.
"""

from __future__ import annotations

import ctypes

from cute_attn.runtime.driver import driver
from cute_attn.runtime.errors import DriverError
from cute_attn.runtime.module import Module
from cute_attn.runtime.toolchain import version_key

ALIGNMENT = 128  # CUtensorMap wants 64, cuda.h declares 128 since CUDA 13
_INVALID_CONTEXT = 201  # CUresult: this thread has no context yet
_MAX_CONFIGS = 256


class _AttributeValue(ctypes.Union):
    _fields_ = (
        ("pad", ctypes.c_char * 64),
        ("cluster_dim", ctypes.c_uint * 3),
        ("flag", ctypes.c_int),
    )


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute."""

    _fields_ = (
        ("id", ctypes.c_int),
        ("pad", ctypes.c_char * 4),
        ("value", _AttributeValue),
    )


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("smem_bytes", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("num_attributes", ctypes.c_uint),
    )


_CLUSTER_DIMENSION = 4  # CUlaunchAttributeID
_PROGRAMMATIC_STREAM_SERIALIZATION = 6
_CAPTURES_PDL = (12, 3)  # CUDA version whose graphs have programmatic edges


class ParamsBlock:
    """Zeroed memory for one kernel parameter struct; ``address`` is a multiple of 128, ``view`` its
    bytes.
    """

    __slots__ = ("_memory", "address", "size", "view")

    def __init__(self, size: int) -> None:
        if size < 1:
            raise ValueError(f"size={size}: a parameter struct has at least one byte")
        self._memory = (ctypes.c_ubyte * (size + ALIGNMENT))()
        start = ctypes.addressof(self._memory)
        offset = -start % ALIGNMENT
        self.address = start + offset
        self.size = size
        self.view = memoryview(self._memory).cast("B")[offset : offset + size]


class Launcher:
    """Launches one kernel with fixed block size and shared memory on one GPU; thread-safe.

    Args:
        module: the loaded or loadable kernel.
        block: threads per block, an int or (x, y, z).
        smem_bytes: dynamic shared memory per block.
        cluster: blocks per cluster in x, y, z; the grid always counts blocks.
        pdl: programmatic dependent launch: the kernel may start before its predecessor in the
            stream has ended, up to its ``griddepcontrol.wait``. Ignored where the driver could not
            capture such a launch in a graph.
        device: ordinal of the GPU.

    Raises:
        DriverError: no driver, or the GPU cannot run the kernel with these resources.
    """

    def __init__(
        self,
        module: Module,
        block: int | tuple[int, int, int],
        smem_bytes: int = 0,
        *,
        cluster: tuple[int, int, int] = (1, 1, 1),
        pdl: bool = False,
        device: int = 0,
    ) -> None:
        module.prepare(smem_bytes, device)
        self.module = module
        self.block = (block, 1, 1) if isinstance(block, int) else block
        self.smem_bytes = smem_bytes
        self.device = device
        attributes = []
        if cluster != (1, 1, 1):
            value = _AttributeValue(cluster_dim=cluster)
            attributes.append(_Attribute(_CLUSTER_DIMENSION, b"", value))
        if pdl and version_key(driver().version()) >= _CAPTURES_PDL:
            value = _AttributeValue(flag=1)
            attributes.append(_Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, b"", value))
        self._attributes = (_Attribute * len(attributes))(*attributes)
        self._kernel = ctypes.c_void_p(module.load())
        self._driver = driver()
        self._call = self._driver.lib.cuLaunchKernelEx
        self._configs: dict[tuple[object, int], object] = {}
        self._arguments: dict[tuple[object, int, int], tuple[object, ...]] = {}

    def launch(self, grid: int | tuple[int, int, int], stream: int, params_address: int) -> None:
        """Launch ``grid`` blocks with the struct at ``params_address``.

        ``stream`` is a CUstream as int; 0 means the default stream of the thread's current device.

        Raises:
            DriverError: the driver refused; nothing was launched.
        """
        key = (grid, stream, params_address)
        args = self._arguments.get(key)
        if args is None:
            args = self._prebuild(grid, stream, params_address)
        status = self._call(*args)
        if status != 0:
            self._retry(status, args)

    def _prebuild(
        self, grid: int | tuple[int, int, int], stream: int, params_address: int
    ) -> tuple[object, ...]:
        """Arguments of cuLaunchKernelEx. They are never changed after, so that threads may share
        them; structs at other addresses share the configuration.
        """
        config = self._configs.get((grid, stream))
        if config is None:
            if len(self._configs) >= _MAX_CONFIGS:  # grids or streams without end
                self._configs.clear()
            config = self._configs[(grid, stream)] = ctypes.byref(self._config(grid, stream))
        if len(self._arguments) >= _MAX_CONFIGS:
            self._arguments.clear()
        args = (config, self._kernel, (ctypes.c_void_p * 1)(params_address), None)
        self._arguments[(grid, stream, params_address)] = args
        return args

    def _config(self, grid: int | tuple[int, int, int], stream: int) -> _Config:
        return _Config(
            grid=(grid, 1, 1) if isinstance(grid, int) else grid,
            block=self.block,
            smem_bytes=self.smem_bytes,
            stream=stream,
            attributes=self._attributes,
            num_attributes=len(self._attributes),
        )

    def _retry(self, status: int, args: tuple[object, ...]) -> None:
        if status == _INVALID_CONTEXT:
            with self._driver.on_device(self.device):
                status = self._call(*args)
        if status != 0:
            raise DriverError(
                f"launch of {self.module.name} (block {self.block}, {self.smem_bytes} bytes of "
                f"shared memory) failed: {self._driver.error_text(status)}",
                status,
            )
