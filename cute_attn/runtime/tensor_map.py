"""Tensor maps for TMA, encoded by the driver straight into a parameter block.

A `TensorMapSpec` says everything but the address: element type, sizes, strides, box and swizzle,
dimensions innermost first as the hardware counts them. Its rules (CUDA driver API,
cuTensorMapEncodeTiled) are checked in Python, with the field named, since the driver only says
"invalid argument".
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from cute_attn.runtime.driver import driver

MAP_BYTES = 128
_ALIGNMENT = 64

# CUtensorMapDataType and the element size; fp8 has no type of its own and travels as bytes.
DATA_TYPES = {
    "uint8": (0, 1),
    "uint16": (1, 2),
    "uint32": (2, 4),
    "int32": (3, 4),
    "uint64": (4, 8),
    "int64": (5, 8),
    "float16": (6, 2),
    "float32": (7, 4),
    "float64": (8, 8),
    "bfloat16": (9, 2),
    "float8_e4m3": (0, 1),
    "float8_e5m2": (0, 1),
}
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes of the swizzle span -> CUtensorMapSwizzle
L2_PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}  # bytes -> CUtensorMapL2promotion


@dataclass(frozen=True)
class TensorMapSpec:
    """A tiled tensor map without its address.

    Attributes:
        dtype: "bfloat16", "float16", "float32", "float8_e4m3", ... (see the table above).
        dims: size per dimension in elements, innermost first; 1 to 5 of them, each 1 to 2**32.
        strides_bytes: distance between neighbours of dimensions 1, 2, ... in bytes; one less than
        ``dims``, multiples
            of 16 below 2**40 (dimension 0 is contiguous).
        box: elements per dimension that one copy moves, each 1 to 256.
        swizzle: span of the shared-memory swizzle in bytes: 0 (none), 32, 64 or 128; ``box[0]``
        fits in it. l2_promotion: granularity of L2 fetches in bytes: 0, 64, 128 or 256.

    Elements outside ``dims`` are read as zero, and count towards the barrier's transaction bytes.

    Raises:
        ValueError: a rule is broken; the message names the field.
    """

    dtype: str
    dims: tuple[int, ...]
    strides_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int = 128
    l2_promotion: int = 128

    def __post_init__(self) -> None:
        if self.dtype not in DATA_TYPES:
            raise ValueError(f"dtype={self.dtype!r}: takes one of {', '.join(DATA_TYPES)}")
        rank = len(self.dims)
        if not 1 <= rank <= 5:
            raise ValueError(f"dims={self.dims}: takes 1 to 5 dimensions")
        if len(self.box) != rank:
            raise ValueError(f"box={self.box}: takes {rank} sizes, one per dimension of dims")
        if len(self.strides_bytes) != rank - 1:
            raise ValueError(
                f"strides_bytes={self.strides_bytes}: takes {rank - 1} strides "
                "(dimension 0 has none)"
            )
        for axis, size in enumerate(self.dims):
            if not 1 <= size <= 2**32:
                raise ValueError(f"dims[{axis}]={size}: takes 1 to 2**32")
        for axis, stride in enumerate(self.strides_bytes):
            if stride % 16 or not 0 <= stride < 2**40:
                raise ValueError(
                    f"strides_bytes[{axis}]={stride}: takes a multiple of 16 in [0, 2**40)"
                )
        for axis, size in enumerate(self.box):
            if not 1 <= size <= 256:
                raise ValueError(f"box[{axis}]={size}: takes 1 to 256")
        if self.swizzle not in SWIZZLES:
            raise ValueError(f"swizzle={self.swizzle}: takes 0, 32, 64 or 128 (bytes)")
        if self.l2_promotion not in L2_PROMOTIONS:
            raise ValueError(f"l2_promotion={self.l2_promotion}: takes 0, 64, 128 or 256 (bytes)")
        inner = self.box[0] * self.element_bytes
        if inner % 16:
            raise ValueError(f"box[0]={self.box[0]}: {inner} bytes are no multiple of 16")
        if self.swizzle and inner > self.swizzle:
            raise ValueError(
                f"box[0]={self.box[0]}: {inner} bytes exceed the swizzle span of {self.swizzle}"
            )

    @property
    def element_bytes(self) -> int:
        return DATA_TYPES[self.dtype][1]

    @property
    def box_bytes(self) -> int:
        """Bytes one copy writes to shared memory and adds to its barrier, parts outside the tensor
        included.
        """
        total = self.element_bytes
        for size in self.box:
            total *= size
        return total


def check_address(pointer: int) -> None:
    """Raise ValueError unless ``pointer`` may be the base of a tensor map."""
    if pointer % 16 or pointer <= 0:
        raise ValueError(f"address={pointer:#x}: a tensor map wants a base aligned to 16 bytes")


class TensorMapEncoder:
    """Encodes maps of one `TensorMapSpec`, remembering them by address.

    Encoding takes a few us, so only the first map is encoded; the others are that one with its
    address replaced. The remembered bytes depend on address and spec alone, so they stay right when
    memory is freed and used again.
    """

    def __init__(self, spec: TensorMapSpec, capacity: int = 512) -> None:
        rank = len(spec.dims)
        self.spec = spec
        self._capacity = capacity
        self._known: dict[int, bytes] = {}
        self._dims = (ctypes.c_uint64 * rank)(*spec.dims)
        self._strides = (ctypes.c_uint64 * max(rank - 1, 1))(*spec.strides_bytes)
        self._box = (ctypes.c_uint32 * rank)(*spec.box)
        self._element_strides = (ctypes.c_uint32 * rank)(*(1,) * rank)
        self._memory = (ctypes.c_ubyte * (MAP_BYTES + 128))()
        self._target = ctypes.addressof(self._memory) + -ctypes.addressof(self._memory) % 128
        self._is_encoded = False

    def write(self, target: int, pointer: int) -> None:
        """Put the map of the tensor at device address ``pointer`` at host address ``target``.

        Raises:
            ValueError: ``pointer`` or ``target`` is misaligned.
            DriverError: no driver, or it refuses the map.
        """
        ctypes.memmove(target, self.map_of(pointer), MAP_BYTES)

    def map_of(self, pointer: int) -> bytes:
        """The 128 bytes of the map of the tensor at device address ``pointer``; raises as `write`
        does.
        """
        encoded = self._known.get(pointer)
        if encoded is None:
            encoded = self.encode(pointer)
            if len(self._known) >= self._capacity:
                self._known.clear()
            self._known[pointer] = encoded
        return encoded

    def encode(self, pointer: int) -> bytes:
        """What `map_of` remembers."""
        if self._is_encoded:
            replace_address(self._target, pointer)
            return ctypes.string_at(self._target, MAP_BYTES)
        check_address(pointer)
        driver().call(
            "cuTensorMapEncodeTiled",
            ctypes.c_void_p(self._target),
            DATA_TYPES[self.spec.dtype][0],
            len(self.spec.dims),
            ctypes.c_void_p(pointer),
            self._dims,
            self._strides,
            self._box,
            self._element_strides,
            0,  # no interleave
            SWIZZLES[self.spec.swizzle],
            L2_PROMOTIONS[self.spec.l2_promotion],
            0,  # outside elements read as zero
        )
        self._is_encoded = True
        return ctypes.string_at(self._target, MAP_BYTES)


def replace_address(target: int, pointer: int) -> None:
    """Point the map at host address ``target`` to another tensor of the same shape, in place.

    Raises:
        ValueError: ``pointer`` is not aligned to 16 bytes or ``target`` not to 64.
        DriverError: no driver, or it refuses.
    """
    check_address(pointer)
    if target % _ALIGNMENT:
        raise ValueError(f"target={target:#x}: a tensor map sits at a multiple of {_ALIGNMENT}")
    driver().call("cuTensorMapReplaceAddress", ctypes.c_void_p(target), ctypes.c_void_p(pointer))
