"""Argument blocks: parameter structs in aligned host memory, filled in place.

`FieldWriter` writes a run of neighbouring fields in one call, which is what makes a planned run
cheap; everything else goes through the ctypes structure.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from cute_attn.abi import ParameterBlock
from cute_attn.runtime.launch import ParamsBlock

_FORMATS = {"tensor_map": "128s", "pointer": "Q", "i64": "q", "i32": "i", "u32": "I", "f32": "f"}


class Arguments:
    """One parameter struct of a kernel.

    Attributes:
        address: of the struct, for the launch.
        view: its bytes.
        fields: ctypes structure over them.
    """

    __slots__ = ("_memory", "address", "fields", "view")

    def __init__(self, params: ParameterBlock) -> None:
        self._memory = ParamsBlock(params.size)
        self.address = self._memory.address
        self.view = self._memory.view
        self.fields = params.structure.from_address(self.address)

    def set(self, **values: Any) -> None:
        """Writes fields by name; an unknown name raises AttributeError."""
        for name, value in values.items():
            getattr(self.fields, name)  # ctypes would add an attribute for an unknown name
            setattr(self.fields, name, value)

    def set_map(self, params: ParameterBlock, name: str, encoded: bytes) -> None:
        """Writes a tensor map."""
        ctypes.memmove(self.address + params.offsets[name], encoded, len(encoded))


class FieldWriter:
    """Writes fields `names`, which lie side by side in the struct, in one call.

    Raises:
        ValueError: the fields are not neighbours.
    """

    __slots__ = ("offset", "pack_into")

    def __init__(self, params: ParameterBlock, names: tuple[str, ...]) -> None:
        kinds = {field.name: field.kind for field in params.fields}
        packed = struct.Struct("<" + "".join(_FORMATS[kinds[name]] for name in names))
        at = self.offset = params.offsets[names[0]]
        for name in names:
            if params.offsets[name] != at:
                raise ValueError(f"field {name!r} is not beside its predecessor in {names}")
            at += struct.calcsize("<" + _FORMATS[kinds[name]])
        self.pack_into = packed.pack_into
