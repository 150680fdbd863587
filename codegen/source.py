"""`GeneratedKernel`: the text of one kernel and all that is needed to compile and launch it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cute_attn.abi import ParameterBlock

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
