"""Where the kernels of a `BatchAttention` come from: compiled here, or out of a bundle."""

from __future__ import annotations

from typing import Protocol

from cute_attn.api.kernel import Kernel, build, build_generated
from cute_attn.codegen.source import GeneratedKernel
from cute_attn.codegen.spec import KernelSpec


class KernelSource(Protocol):
    """Gives kernels; `cute_attn.Bundle` is one."""

    def check_device(self, arch: str, name: str) -> None:
        """Raises ValueError if there is nothing for GPUs of `arch`; `name`: of the GPU."""

    def attention(self, spec: KernelSpec) -> Kernel:
        """The attention kernel of a spec."""

    def small(self, generated: GeneratedKernel) -> Kernel:
        """A kernel that is launched with it."""


class Compiled:
    """Kernels that are found in the cache, or compiled."""

    def check_device(self, arch: str, name: str) -> None:
        """Takes any GPU."""

    def attention(self, spec: KernelSpec) -> Kernel:
        """See `build`."""
        return build(spec)

    def small(self, generated: GeneratedKernel) -> Kernel:
        """See `build_generated`."""
        return build_generated(generated)


COMPILED = Compiled()
