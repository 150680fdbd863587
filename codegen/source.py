"""`GeneratedKernel`: the text of one kernel and all that is needed to compile and launch it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cute_attn.abi import ParameterBlock
from cute_attn.codegen.spec import KernelSpec

INCLUDE_DIR = Path(__file__).parent / "include"


@dataclass(frozen=True)
class GeneratedKernel:
    """One translation unit with one `extern "C"` entry.

    Attributes:
        name: entry symbol.
        text: CUDA C++ source; deterministic.
        arch: "sm_80" ... "sm_90a".
        threads: threads per block.
        smem_bytes: dynamic shared memory per block.
        blocks_per_sm: resident blocks per SM that the launch bounds ask for.
        params: layout of the struct that the entry takes by value.
        include_dirs: directories of our own headers, beside CuTe's.
        dependent_launch: launched as a programmatic dependent of its predecessor in the stream (it
            waits for it itself).
    """

    name: str
    text: str
    arch: str
    threads: int
    smem_bytes: int
    blocks_per_sm: int
    params: ParameterBlock
    include_dirs: tuple[Path, ...]
    dependent_launch: bool = False

    @classmethod
    def of_spec(
        cls,
        spec: KernelSpec,
        text: str,
        smem_bytes: int,
        params: ParameterBlock,
        include_dirs: tuple[Path, ...],
        *,
        dependent_launch: bool,
    ) -> GeneratedKernel:
        """An attention kernel; the rest is in its spec."""
        return cls(
            name=spec.name,
            text=text,
            arch=spec.arch,
            threads=spec.tile.threads,
            smem_bytes=smem_bytes,
            blocks_per_sm=spec.tile.blocks_per_sm,
            params=params,
            include_dirs=include_dirs,
            dependent_launch=dependent_launch,
        )
