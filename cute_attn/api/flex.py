"""FlexAttention's functions as variants, with the tensors that they close over."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from cute_attn.variants import Variant
from cute_attn.variants.expression import ARGUMENTS
from cute_attn.variants.tensor_row import TensorRow
from cute_attn.variants.traced import Traced
from cute_attn.variants.traced_tensor import TracedTensor, captured

Mod = Callable[..., Any]

_CONVERTED = {
    torch.float64: torch.float32, torch.bfloat16: torch.float32, torch.float16: torch.float32,
    torch.int64: torch.int32, torch.int16: torch.int32, torch.int8: torch.int32,
    torch.uint8: torch.int32,
}  # fmt: skip
# Names that the kernels' parameters have: a tensor of such a name gets another.
_TAKEN = frozenset(
    {"q", "k", "v", "plan", "params", "page_table", "page_size", "sm_scale", *ARGUMENTS}
)


def from_flex(
    score_mod: Mod | None = None, mask_mod: Mod | None = None, *, name: str | None = None
) -> Variant:
    """The variant of FlexAttention's `score_mod` and `mask_mod`, as they are.

    Numbers that the functions close over become constants. Tensors that they close over and index
    become tensor parameters under the names that the functions have for them, read where they are
    (so that values may change in place); those of another dtype than float32, int32 or bool are
    converted now. Other values can be given by name, as `tensors=` of `BatchAttention.plan`.

    `q_idx` is the position of a query: with fewer queries than keys, the last one stands at the
    last key, where FlexAttention counts from the first.

    Args:
        score_mod: (score, b, h, q_idx, kv_idx) -> score; `score` is scaled already.
        mask_mod: (b, h, q_idx, kv_idx) -> bool.
        name: a C identifier; by default made of the functions' names.

    Raises:
        ValueError: neither function is given.
        TraceError: a function cannot be traced; with the line.
    """
    mods = [mod for mod in (mask_mod, score_mod) if mod is not None]
    if not mods:
        raise ValueError("score_mod and mask_mod are None; from_flex() takes at least one")
    with _CaptureTensors(mods):
        return Variant(name or _joined(mods), mask=mask_mod, logits=score_mod)


def _joined(mods: list[Mod]) -> str:
    names = [re.sub(r"\W", "", getattr(mod, "__name__", "")) for mod in mods]
    return "_".join("flex" if n in ("", "lambda") else n for n in names)


class _CaptureTensors(TorchFunctionMode):
    """Turns tensors that are indexed by traced values into parameters of the trace."""

    def __init__(self, mods: list[Mod]) -> None:
        super().__init__()
        self._mods = mods
        self._known: dict[int, tuple[torch.Tensor, torch.Tensor, str]] = {}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__ and _is_traced(args[1]):
            return self._parameter(args[0])[args[1]]
        traced = [x for x in (*args, *kwargs.values()) if isinstance(x, (Traced, TracedTensor))]
        if not traced:
            return func(*args, **kwargs)
        first = next((x for x in traced if isinstance(x, TensorRow)), traced[0])
        return first.__torch_function__(func, types, args, kwargs)

    def _parameter(self, tensor: torch.Tensor) -> TracedTensor:
        if id(tensor) not in self._known:
            converted = tensor.to(_CONVERTED.get(tensor.dtype, tensor.dtype))
            if converted.dim() and converted.stride(-1) != 1:
                converted = converted.contiguous()
            self._known[id(tensor)] = tensor, converted, self._name(tensor)
        _, converted, name = self._known[id(tensor)]
        return captured(converted, name)

    def _name(self, tensor: torch.Tensor) -> str:
        found = (name for mod in self._mods for name, x in _variables(mod) if x is tensor)
        name = next((name for name in found if name.isascii()), "captured")
        taken = _TAKEN.union(known for _, _, known in self._known.values())
        return next(n for i in range(len(taken) + 1) if (n := f"{name}{i or ''}") not in taken)


def _is_traced(index: Any) -> bool:
    return any(isinstance(i, Traced) for i in (index if isinstance(index, tuple) else (index,)))


def _variables(mod: Mod, depth: int = 4) -> Iterator[tuple[str, Any]]:
    """What a function closes over, and what functions that it closes over do."""
    try:
        variables = inspect.getclosurevars(mod)
    except TypeError:  # no Python function
        return
    for name, value in (*variables.nonlocals.items(), *variables.globals.items()):
        yield name, value
        if inspect.isfunction(value) and depth:
            yield from _variables(value, depth - 1)
