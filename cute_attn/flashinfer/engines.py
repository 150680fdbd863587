"""`BatchAttention` objects behind a wrapper: made when a plan needs another kernel, and kept."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from cute_attn.api import BatchAttention, Variant

_MOST = 8  # kept of one wrapper, unless captured graphs may read their memory
_WORKSPACE_ALIGNMENT = 128


class EngineKey(NamedTuple):
    """What another kernel, or another workspace, follows from."""

    num_qo_heads: int
    num_kv_heads: int
    head_dim_qk: int
    head_dim_vo: int
    dtype: torch.dtype
    variant: Variant
    page_size: int | None
    batch_invariant: bool


class Engines:
    """Args:
    float_workspace_buffer: of the user; its device is that of all. Used for partial results if it
        is large enough for any step, else every object allocates.
    kv_layout: "NHD" or "HND".
    use_cuda_graph: kernel, grid and addresses stay as the first plan chose them.
    max_requests: of a step, with `use_cuda_graph`.
    """

    def __init__(
        self,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str,
        *,
        use_cuda_graph: bool,
        max_requests: int | None,
    ) -> None:
        self._layout = kv_layout
        self._graph, self._max_requests = use_cuda_graph, max_requests
        self._made: dict[EngineKey, BatchAttention] = {}
        self._workspace: torch.Tensor | None = None
        self.device = float_workspace_buffer.device
        self.use_workspace(float_workspace_buffer)

    def use_workspace(self, buffer: torch.Tensor) -> None:
        """Of objects from now on; those that there are go."""
        self._made.clear()
        self._workspace = None
        if buffer.device.type == "cpu" or not buffer.is_contiguous():
            return
        memory = buffer.detach().reshape(-1).view(torch.uint8)
        self._workspace = memory[-memory.data_ptr() % _WORKSPACE_ALIGNMENT :]

    def get(self, key: EngineKey) -> BatchAttention:
        """The object for such steps."""
        found = self._made.get(key)
        if found is None:
            if not self._graph and len(self._made) >= _MOST:
                self._made.pop(next(iter(self._made)))
            found = self._made[key] = self._make(key)
        return found

    def workspace_size(self, key: EngineKey) -> int:
        """Bytes of a workspace that is large enough for any step; 0 where it is not used."""
        return 0 if key.batch_invariant else self._new(key).workspace_size(key.page_size)

    def _make(self, key: EngineKey) -> BatchAttention:
        made = self._new(key)
        if self._workspace is None or key.batch_invariant:
            return made
        if self._workspace.numel() < made.workspace_size(key.page_size):
            return made
        return self._new(key, workspace=self._workspace)

    def _new(self, key: EngineKey, **options: Any) -> BatchAttention:
        return BatchAttention(
            key.num_qo_heads,
            key.num_kv_heads,
            key.head_dim_qk,
            head_dim_vo=key.head_dim_vo,
            dtype=key.dtype,
            variant=key.variant,
            kv_layout=self._layout,
            device=self.device,
            cuda_graph=self._graph,
            max_requests=self._max_requests,
            batch_invariant=key.batch_invariant,
            **options,
        )
