"""Index tensors of paged caches: as `PagedKV`, and in buffers of the user for CUDA graphs."""

from __future__ import annotations

from typing import Any

import torch

from cute_attn.api import PagedKV
from cute_attn.flashinfer import arguments


def paged_kv(
    indptr: torch.Tensor,
    indices: torch.Tensor,
    last_page_len: torch.Tensor,
    page_size: int,
    *,
    stays: bool = False,
) -> PagedKV:
    """The format of a paged cache.

    Args:
        indptr: (num_requests + 1,) on the host.
        indices: page numbers, anywhere.
        last_page_len: (num_requests,) on the host. Of requests without pages it does not matter.
        page_size: keys per page.
        stays: captured graphs read page numbers where `indices` are.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if indices.dtype != torch.int32:
        indices, stays = indices.to(torch.int32), False
    kv = PagedKV(indptr, indices, last_page_len, page_size)
    kv.table_stays = stays and not kv.table_on_host
    return kv


def copy_to_buffers(
    owner: Any, batch_size: int, non_blocking: bool, **tensors: torch.Tensor
) -> None:
    """Copies index tensors of a plan to buffers of the user.

    Args:
        owner: the wrapper, whose attributes the buffers are.
        batch_size: requests of every step.
        non_blocking: of the copies.
        tensors: by the names of the attributes.

    Raises:
        ValueError: one has another number of elements than its buffer.
    """
    for name, x in tensors.items():
        buffer = getattr(owner, name)
        if len(x) != len(buffer):
            raise ValueError(
                f"{name[1:].removesuffix('_buf')} has {len(x)} elements; with use_cuda_graph"
                f" every step has {batch_size} requests, which take {len(buffer)}"
            )
        if x.data_ptr() != buffer.data_ptr():
            buffer.copy_(x, non_blocking=non_blocking)


class PagedBuffers:
    """Memory of the user that plan() copies its index tensors to, where graphs may be captured.

    Args:
        use_cuda_graph: False: there is none, and the tensors of a plan are kept as they are.
        buffers: by the names of the arguments; the one that ends in `last_page_len_buf` or
            `last_page_len_buffer` has as many elements as a batch has requests.

    Attributes:
        batch_size: requests of every step; 0 without `use_cuda_graph`.
        stay: page numbers are read where the user has them, at every replay.

    Raises:
        TypeError, ValueError: one is missing, or does not fit the others.
    """

    def __init__(self, use_cuda_graph: bool, **buffers: torch.Tensor | None) -> None:
        self._fixed = bool(use_cuda_graph)
        self.batch_size, self.stay = 0, self._fixed
        if not use_cuda_graph:
            return
        for name, buffer in buffers.items():
            if not isinstance(buffer, torch.Tensor):
                raise ValueError(
                    f"{name} is a {type(buffer).__name__}; with use_cuda_graph it takes a"
                    " torch.Tensor"
                )
        sizes = {name: len(b) for name, b in buffers.items() if b is not None}
        self.batch_size = next(n for name, n in sizes.items() if "last_page_len" in name)
        for name, size in sizes.items():
            if "indptr" in name and size != self.batch_size + 1:
                raise ValueError(
                    f"{name} has {size} elements; {self.batch_size} requests take"
                    f" {self.batch_size + 1}"
                )

    def hold(
        self, owner: Any, indices: torch.Tensor, non_blocking: bool, **tensors: torch.Tensor
    ) -> torch.Tensor:
        """Keeps the index tensors of a plan as attributes of the wrapper, on its device.

        Args:
            owner: the wrapper; its attribute `_paged_kv_indices_buf` is for `indices`.
            indices: page numbers.
            non_blocking: of copies.
            tensors: the others, by the names of their attributes.

        Returns:
            page numbers, where kernels are to read them.

        Raises:
            TypeError, ValueError: with buffers, a tensor does not fit.
        """
        arguments.tensor("indices", indices)
        if not self._fixed:
            for name, x in tensors.items():
                setattr(owner, name, x)
            owner._paged_kv_indices_buf = indices
            return indices
        copy_to_buffers(owner, self.batch_size, non_blocking, **tensors)
        pages: torch.Tensor = owner._paged_kv_indices_buf
        if len(indices) > len(pages):
            raise ValueError(
                f"indices has {len(indices)} elements; the buffer for them has {len(pages)}"
            )
        if indices.data_ptr() != pages.data_ptr():
            pages[: len(indices)].copy_(indices, non_blocking=non_blocking)
        return pages
