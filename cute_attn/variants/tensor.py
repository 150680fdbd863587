"""`Tensor`: a tensor parameter of a variant, which hooks index."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cute_attn.variants.names import check_name

_DTYPES = {"float32": "f32", "int32": "i32", "bool": "bool"}
_TAKES = {**{kind: dtype for dtype, kind in _DTYPES.items()}, "bits": "uint8"}
_MOST_DIMS = 4


class Captured:
    """A tensor that a function had in its hands when it was traced; equal if it is the same."""

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Captured) and other.tensor is self.tensor

    def __hash__(self) -> int:
        return id(self.tensor)


@dataclass(frozen=True)
class Tensor:
    """A tensor that hooks read by integer indices; given at run time.

    An index outside the tensor reads the last element of its dimension: kernels also look at
    positions that belong to no key.

    Attributes:
        name: a C++ identifier other than the hooks' own arguments, `params`, `values`, `lag`.
        kind: of its elements: "f32", "i32", "bool", or "bits": truth values, eight to a byte of the
            last dimension, the lowest bit first (NumPy's `packbits(bitorder="little")`). Indices
            count bits.
        dims: number of dimensions, 1 to 4.
        comment: printed beside the kernel's parameter, e.g. its shape.
        captured: the tensor that is taken if none is given.
    """

    name: str
    kind: str
    dims: int
    comment: str = ""
    captured: Captured | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_name("tensor", self.name)
        if self.kind not in _TAKES:
            raise ValueError(
                f"kind of tensor {self.name!r} is {self.kind!r}; it takes {', '.join(_TAKES)}"
            )
        if not 1 <= self.dims <= _MOST_DIMS:
            raise ValueError(f"tensor {self.name!r} has {self.dims} dims; it takes 1 to 4")

    def check(self, value: Any) -> None:
        """Raises TypeError, ValueError if `value` (an array or tensor) cannot be it."""
        shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
        if shape is None or dtype is None:
            raise TypeError(
                f"{self.name} is a {type(value).__name__}; it takes a tensor of {self.dims} dims"
            )
        if _name_of(dtype) != _TAKES[self.kind]:
            raise TypeError(f"{self.name} has dtype {dtype}; it takes {_TAKES[self.kind]}")
        if len(shape) != self.dims or 0 in shape:
            raise ValueError(
                f"{self.name} has shape {tuple(shape)}; it takes {self.dims} dims, none empty"
            )

    @property
    def element_kind(self) -> str:
        """What hooks get: "f32", "i32" or "bool"."""
        return "bool" if self.kind == "bits" else self.kind

    def elements(self, value: Any) -> Any:
        """Its elements as a NumPy array: of bits the truth values.

        Args:
            value: an array or a tensor on the host, checked.
        """
        array = np.asarray(value)
        return (
            np.unpackbits(array, axis=-1, bitorder="little") != 0 if self.kind == "bits" else array
        )


def index_shape(value: Any) -> tuple[int, ...]:
    """What indices of an array or tensor reach to: of packed bits the last dimension has eight
    times its bytes."""
    shape = tuple(value.shape)
    return (*shape[:-1], 8 * shape[-1]) if _name_of(value.dtype) == "uint8" else shape


def _name_of(dtype: Any) -> str:
    return str(dtype).split(".")[-1]


def kind_of_elements(value: Any) -> str | None:
    """Kind of an array's or tensor's elements; None if there is none for its dtype."""
    return _DTYPES.get(_name_of(value.dtype))
