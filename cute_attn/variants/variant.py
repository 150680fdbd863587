"""A variant: which keys a query sees and what happens to its scores, as named hooks.

A hook is one C++ expression for the kernels and one NumPy function for the CPU executor, over the
same arguments. Positions are true positions, not indices into a tile:

    mask    (b, h, q_idx, kv_idx) -> bool           keep the score?
    logits  (score, b, h, q_idx, kv_idx) -> score   on the scaled score, before the mask
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cute_attn.abi import UNBOUNDED

_ARGUMENTS = ("score", "b", "h", "q_idx", "kv_idx")


@dataclass(frozen=True)
class Scalar:
    """A named number that a hook reads; given at run time, so changing it compiles nothing.

    Attributes:
        name: a C identifier other than the hooks' own arguments.
        kind: "i32" or "f32".
        default: value if none is given.
        comment: printed beside the kernel's parameter.
        positive: values must be above 0.
    """

    name: str
    kind: str
    default: float | int
    comment: str
    positive: bool = False

    def __post_init__(self) -> None:
        if not self.name.isidentifier() or self.name in _ARGUMENTS:
            raise ValueError(
                f"a scalar is called {self.name!r}; it takes a C identifier other than "
                f"{', '.join(_ARGUMENTS)}"
            )
        if self.kind not in ("i32", "f32"):
            raise ValueError(f"kind of scalar {self.name!r} is {self.kind!r}; it takes i32 or f32")
        self.check(self.default)

    def check(self, value: float | int) -> None:
        """Raises ValueError if the scalar cannot have this value."""
        if self.kind == "i32" and (value != int(value) or not -(1 << 31) <= value < 1 << 31):
            raise ValueError(f"{self.name} is {value!r}; it takes a 32-bit integer")
        if self.positive and not value > 0:
            raise ValueError(f"{self.name} is {value!r}; it must be above 0")


@dataclass(frozen=True)
class Hook:
    """One hook.

    Attributes:
        name: printed beside the generated function.
        cpp: C++ expression over the hook's arguments and the variant's scalars.
        evaluate: the same in NumPy, vectorised: evaluate(*arguments, **scalars).
    """

    name: str
    cpp: str
    evaluate: Callable[..., Any] = field(compare=False, repr=False)


@dataclass(frozen=True)
class Band:
    """Keys outside q_idx - left <= kv_idx <= q_idx + right are invisible to every head and request.

    The scheduler and the kernels skip KV blocks outside the band. A limit is an int, the name of
    one of the variant's scalars, or None for no limit.
    """

    left: int | str | None = None
    right: int | str | None = None

    def resolve(self, scalars: Mapping[str, float | int]) -> tuple[int, int]:
        """(left, right) as integers; UNBOUNDED where there is no limit."""

        def limit(value: int | str | None) -> int:
            if value is None:
                return UNBOUNDED
            number = scalars[value] if isinstance(value, str) else value
            if number < 0:
                name = value if isinstance(value, str) else "a band limit"
                raise ValueError(f"{name} is {number}; it takes 0 or more keys")
            return min(int(number), UNBOUNDED)

        return limit(self.left), limit(self.right)


@dataclass(frozen=True)
class Variant:
    """A set of hooks with the scalars they read.

    Attributes:
        name: goes into kernel names; a C identifier.
        mask: hook, or None: every key within the request is visible.
        logits: hook, or None: the scaled score is used as it is.
        scalars: run-time numbers of the hooks.
        band: where keys can be visible at all.
        band_is_mask: True if the mask keeps everything inside the band, so that KV blocks that lie
            inside it need no mask code.
    """

    name: str
    mask: Hook | None = None
    logits: Hook | None = None
    scalars: tuple[Scalar, ...] = ()
    band: Band = Band()
    band_is_mask: bool = True

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ValueError(f"variant name must be a C identifier, got {self.name!r}")
        if self.mask is None and (self.band != Band() or not self.band_is_mask):
            raise ValueError(f"variant {self.name!r} limits its band but has no mask hook")
        integers = {s.name for s in self.scalars if s.kind == "i32"}
        for limit in (self.band.left, self.band.right):
            if isinstance(limit, str) and limit not in integers:
                raise ValueError(
                    f"the band of variant {self.name!r} is limited by {limit!r}, which is none of "
                    f"its i32 scalars: {sorted(integers) or 'none'}"
                )

    def values(self, given: Mapping[str, float | int] | None = None) -> dict[str, float | int]:
        """Scalar values: defaults overlaid with `given`; unknown names and bad values raise."""
        given = dict(given or {})
        values = {s.name: given.pop(s.name, s.default) for s in self.scalars}
        if given:
            known = [s.name for s in self.scalars] or "none"
            raise ValueError(f"variant {self.name!r} has no scalar {list(given)}; it has: {known}")
        for scalar in self.scalars:
            scalar.check(values[scalar.name])
        return values

    def __and__(self, other: Variant) -> Variant:
        """Both: a key must pass both masks; only one of the two may transform logits."""
        if self.logits and other.logits:
            raise ValueError(f"{self.name!r} and {other.name!r} both transform logits")
        return Variant(
            name=f"{self.name}_{other.name}",
            mask=_both(self.mask, other.mask),
            logits=self.logits or other.logits,
            scalars=_join(self.scalars, other.scalars),
            band=Band(
                _tighter(self.band.left, other.band.left),
                _tighter(self.band.right, other.band.right),
            ),
            band_is_mask=self.band_is_mask and other.band_is_mask,
        )


def _join(a: tuple[Scalar, ...], b: tuple[Scalar, ...]) -> tuple[Scalar, ...]:
    names = {s.name: s for s in a}
    for s in b:
        if names.setdefault(s.name, s) != s:
            raise ValueError(f"two different scalars are called {s.name!r}")
    return tuple(names.values())


def _both(a: Hook | None, b: Hook | None) -> Hook | None:
    if a is None or b is None:
        return a or b
    first, second = a, b

    def evaluate(*arguments: Any, **scalars: Any) -> Any:
        return first.evaluate(*arguments, **scalars) & second.evaluate(*arguments, **scalars)

    return Hook(f"{a.name} and {b.name}", f"({a.cpp}) && ({b.cpp})", evaluate)


def _tighter(a: int | str | None, b: int | str | None) -> int | str | None:
    if a is None or b is None:
        return a if b is None else b
    if isinstance(a, int) and isinstance(b, int):
        return min(a, b)
    if a == b:
        return a
    raise ValueError(f"cannot tell which band limit is tighter: {a!r} or {b!r}")
