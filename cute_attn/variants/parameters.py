"""The parameters of a variant, scalars and tensors, as an ordered set by name."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from cute_attn.variants.scalar import Scalar
from cute_attn.variants.tensor import Tensor

Parameter = Scalar | Tensor


def join(a: tuple[Parameter, ...], b: tuple[Parameter, ...]) -> tuple[Parameter, ...]:
    """All of two sets.

    Raises:
        ValueError: two different ones have the same name.
    """
    names = {p.name: p for p in a}
    for p in b:
        if names.setdefault(p.name, p) != p:
            raise ValueError(f"two different parameters are called {p.name!r}")
    return tuple(names.values())


def scalars_of(parameters: tuple[Parameter, ...]) -> tuple[Scalar, ...]:
    """The scalars among them."""
    return tuple(p for p in parameters if isinstance(p, Scalar))


def made_live(parameters: tuple[Parameter, ...], names: Collection[str]) -> tuple[Parameter, ...]:
    """The same, scalars of these names live."""
    return tuple(
        replace(p, live=True) if isinstance(p, Scalar) and p.name in names else p
        for p in parameters
    )


def tensors_of(parameters: tuple[Parameter, ...]) -> tuple[Tensor, ...]:
    """The tensors among them."""
    return tuple(p for p in parameters if isinstance(p, Tensor))
