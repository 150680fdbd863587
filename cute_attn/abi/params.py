"""The parameter block: fields declared once, from which the C++ struct and the packing both come.

A kernel takes one struct by value. `ParameterBlock` lays its fields out by the C++ rules, makes a
ctypes structure for the host, and `codegen.params` prints the C++ struct with a `static_assert` on
every offset.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cached_property

_TENSOR_MAP_BYTES = 128

# kind -> (size, alignment, ctypes type)
_KINDS: dict[str, tuple[int, int, type]] = {
    "tensor_map": (_TENSOR_MAP_BYTES, 64, ctypes.c_ubyte * _TENSOR_MAP_BYTES),
    "pointer": (8, 8, ctypes.c_uint64),
    "i64": (8, 8, ctypes.c_int64),
    "i32": (4, 4, ctypes.c_int32),
    "u32": (4, 4, ctypes.c_uint32),
    "f32": (4, 4, ctypes.c_float),
}


@dataclass(frozen=True)
class Field:
    """One field of a parameter block.

    Attributes:
        name: identifier on both sides.
        kind: "tensor_map", "pointer", "i64", "i32", "u32" or "f32".
        comment: meaning; for tensors the shape, printed beside the C++ field.
        pointee: for pointers, the C++ element type, e.g. "Element const".
    """

    name: str
    kind: str
    comment: str
    pointee: str = "void"

    def __post_init__(self) -> None:
        if self.kind not in _KINDS:
            raise ValueError(f"kind of field {self.name!r} is {self.kind!r}; known: {list(_KINDS)}")

    @property
    def cpp_type(self) -> str:
        if self.kind == "pointer":
            return f"{self.pointee}*"
        names = {"tensor_map": "cute::TmaDescriptor", "i64": "int64_t", "i32": "int32_t"}
        return names.get(self.kind) or {"u32": "uint32_t", "f32": "float"}[self.kind]


@dataclass(frozen=True)
class ParameterBlock:
    """An ordered set of fields with their C++ offsets."""

    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("a parameter block needs at least one field")
        names = [f.name for f in self.fields]
        if len(set(names)) != len(names):
            raise ValueError(f"parameter block has a field twice: {names}")

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Byte offset of each field."""
        offsets, at = {}, 0
        for f in self.fields:
            size, align, _ = _KINDS[f.kind]
            at = -(-at // align) * align
            offsets[f.name] = at
            at += size
        return offsets

    @cached_property
    def alignment(self) -> int:
        return max(_KINDS[f.kind][1] for f in self.fields)

    @cached_property
    def size(self) -> int:
        """sizeof the C++ struct."""
        last = self.fields[-1]
        end = self.offsets[last.name] + _KINDS[last.kind][0]
        return -(-end // self.alignment) * self.alignment

    @cached_property
    def structure(self) -> type[ctypes.Structure]:
        """ctypes structure with the same offsets; map it on a buffer with `from_address`."""
        members: list[tuple[str, type]] = []
        at = 0
        for f in self.fields:
            offset = self.offsets[f.name]
            if offset > at:
                members.append((f"_pad_{at}", ctypes.c_ubyte * (offset - at)))
            members.append((f.name, _KINDS[f.kind][2]))
            at = offset + _KINDS[f.kind][0]
        if self.size > at:
            members.append((f"_pad_{at}", ctypes.c_ubyte * (self.size - at)))
        return type("Params", (ctypes.Structure,), {"_pack_": 1, "_fields_": members})
