"""`Scalar`: a named run-time number of a variant."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cute_attn.variants.interval import INT_MAX, INT_MIN, WHOLE, Interval
from cute_attn.variants.names import check_name


@dataclass(frozen=True, repr=False)
class Scalar:
    """A named number that a hook reads; given at run time, so changing it compiles nothing.

    Attributes:
        name: a C++ identifier other than the hooks' own arguments, `params`, `values`, `lag`.
        kind: "i32" or "f32".
        default: value if none is given.
        comment: printed beside the kernel's parameter.
        positive: values must be above 0.
        lower, upper: values must be at least, at most this; None: no limit. What is known of a
            scalar is used in the analysis of masks.
        live: kernels read it from device memory, which every plan fills, not from their arguments:
            so a captured CUDA graph sees new values.
    """

    name: str
    kind: str
    default: float | int
    comment: str = ""
    positive: bool = False
    lower: float | int | None = None  # in no kernel's source
    upper: float | int | None = None
    live: bool = False

    def __post_init__(self) -> None:
        check_name("scalar", self.name)
        if self.kind not in ("i32", "f32"):
            raise ValueError(f"kind of scalar {self.name!r} is {self.kind!r}; it takes i32 or f32")
        self.check(self.default)

    def __repr__(self) -> str:
        """What kernels depend on."""
        shown = ["name", "kind", "default", "comment", "positive", *["live"] * self.live]
        return f"Scalar({', '.join(f'{name}={getattr(self, name)!r}' for name in shown)})"

    def check(self, value: float | int) -> None:
        """Raises TypeError, ValueError if the scalar cannot have this value."""
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)):
            raise TypeError(f"{self.name} is a {type(value).__name__}; it takes a number")
        if value != value:
            raise ValueError(f"{self.name} is NaN; it takes a number")
        if self.kind == "i32" and not (
            INT_MIN <= value <= INT_MAX and value == int(value)  # in this order: int(inf) raises
        ):
            raise ValueError(f"{self.name} is {value!r}; it takes a 32-bit integer")
        if self.positive and not value > 0:
            raise ValueError(f"{self.name} is {value!r}; it must be above 0")
        if self.lower is not None and value < self.lower:
            raise ValueError(f"{self.name} is {value!r}; it takes {self.lower} or more")
        if self.upper is not None and value > self.upper:
            raise ValueError(f"{self.name} is {value!r}; it takes {self.upper} or less")

    @property
    def bounds(self) -> Interval:
        """What its values are between."""
        low, high = (INT_MIN, INT_MAX) if self.kind == "i32" else WHOLE
        if self.positive:
            low = 1.0 if self.kind == "i32" else 0.0
        if self.lower is not None:
            low = max(low, float(self.lower))
        if self.upper is not None:
            high = min(high, float(self.upper))
        return low, high
