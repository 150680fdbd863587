"""Kernels that are called directly rather than planned: built at their first call."""

from __future__ import annotations

import torch

from cute_attn.api.kernel import Kernel
from cute_attn.api.kernel_source import COMPILED, KernelSource
from cute_attn.codegen.source import GeneratedKernel


def ready(generated: GeneratedKernel, source: KernelSource = COMPILED) -> Kernel:
    """The kernel, compiled if need be and `source` does so; not during graph capture.

    Raises:
        RuntimeError: it has not been used before and a CUDA graph is being captured.
    """
    if torch.cuda.is_current_stream_capturing():
        raise RuntimeError(
            f"kernel {generated.name} is not loaded and a CUDA graph is being captured; call it"
            " once before the capture"
        )
    return source.small(generated)
