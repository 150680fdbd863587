"""Torch operators, for `torch.compile` and exported graphs.

    torch.ops.cute_attn.run(batch.handle, q, k, v, out, lse)
    torch.ops.cute_attn.merge_states(v, lse) -> (out, lse)

A plan cannot pass through a graph, so `BatchAttention` objects are named by integers: a traced
model holds the handle, plan() goes on as before between its calls. (`Library.define` and `impl`
cost half of what `torch.library.custom_op` does per call.)
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Protocol

import torch

from cute_attn.api.states import merge_states

_torch_library: Any = torch.library  # torch annotates it only in part
_library = _torch_library.Library("cute_attn", "FRAGMENT")
_library.define(
    "run(int handle, Tensor q, Tensor k, Tensor? v, Tensor(a!) out, Tensor(b!)? lse) -> ()"
)
_library.define("merge_states(Tensor v, Tensor lse) -> (Tensor, Tensor)")


class Runs(Protocol):
    """What a handle stands for: a `BatchAttention`."""

    def run(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor | None = None,
        *,
        out: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
    ) -> object:
        """See `BatchAttention.run`."""


_objects: weakref.WeakValueDictionary[int, Runs] = weakref.WeakValueDictionary()
_handles = itertools.count(1)


def register(batch: Runs) -> int:
    """A handle for `batch`, valid as long as the object lives."""
    handle = next(_handles)
    _objects[handle] = batch
    return handle


def _run(
    handle: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    batch = _objects.get(handle)
    if batch is None:
        raise ValueError(f"handle is {handle}; it takes the handle of a living BatchAttention")
    batch.run(q, k, v, out=out, lse=lse)


def _run_fake(
    handle: int,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Nothing but `out` and `lse` changes, and their sizes do not."""


def _merge_states_fake(v: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return v.new_empty(v.shape[1:]), lse.new_empty(lse.shape[1:])


for _device in ("CPU", "CUDA"):
    _library.impl("run", _run, _device)
    _library.impl("merge_states", merge_states, _device)
torch.library.register_fake("cute_attn::run", _run_fake, lib=_library)
torch.library.register_fake("cute_attn::merge_states", _merge_states_fake, lib=_library)
