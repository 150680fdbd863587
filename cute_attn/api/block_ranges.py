"""Ranges of the tensors that a mask reads, made on the device before each run.

Tensors may change from run to run, and between replays of a CUDA graph: so a small kernel looks at
them in the stream, ahead of the attention kernel. The sizes of its tables follow from the shapes of
the tensors alone.
"""

from __future__ import annotations

import torch

from cute_attn.api.kernel_source import COMPILED, KernelSource
from cute_attn.api.parameters import Parameters
from cute_attn.api.small_kernels import ready
from cute_attn.codegen.kernels import block_ranges_grid, emit_block_ranges, range_tables
from cute_attn.variants import Variant
from cute_attn.variants.tensor import index_shape

_ALIGNMENT = 256


class BlockRanges:
    """The kernel of a variant on one GPU, and memory for its tables.

    Args:
        arch: what small kernels are compiled for.
        variant: whose mask reads tensors.
        device: a CUDA device.
        source: where the kernel comes from.

    Attributes:
        kernel: the kernel.

    Raises:
        RuntimeError: a CUDA graph is being captured.
        CompileError, ToolchainError, CacheMissError: see `build`.
    """

    def __init__(
        self,
        arch: str,
        variant: Variant,
        device: torch.device,
        source: KernelSource = COMPILED,
    ) -> None:
        self.kernel = ready(emit_block_ranges(arch, variant), source)
        self._tables = range_tables(variant)
        self._device = device
        self._launch = self.kernel.launcher(device.index).launch
        self._fields = tuple(self.kernel.generated.params.offsets)
        self._arguments = self.kernel.arguments()
        self._memory = torch.empty(0, dtype=torch.uint8, device=device)
        self._known: Parameters | None = None  # whose fields the argument block holds
        self._grid = (1, 1, 1)

    def place(self, parameters: Parameters) -> None:
        """Gives the tables of some tensors their places, unless they have some: those of earlier
        tensors if they are large enough. Nothing of one run is left for the next, so that all
        tensors of one object may share them."""
        if parameters.tables is not None or parameters.missing is not None:
            return
        at, offsets = 0, {}
        for table in self._tables:
            offsets[table.name] = at
            size = table.num_bytes(index_shape(parameters.tensors[table.tensor]))
            at += -(-size // _ALIGNMENT) * _ALIGNMENT
        if self._memory.numel() < at:
            self._memory = torch.empty(at, dtype=torch.uint8, device=self._device)
        parameters.tables = self._memory
        base = self._memory.data_ptr()
        parameters.update({name: base + offset for name, offset in offsets.items()})

    def run(self, parameters: Parameters, stream: int) -> None:
        """Launches the kernel for tensors whose tables have their places."""
        if self._known is not parameters:
            self._arguments.set(**{name: parameters[name] for name in self._fields})
            shapes = {name: index_shape(x) for name, x in parameters.tensors.items()}
            self._grid = block_ranges_grid(self._tables, shapes)
            self._known = parameters
        self._launch(self._grid, stream, self._arguments.address)
