"""Compile, cache, load and launch CUDA kernels: source text in, launches out. Knows nothing of attention."""

from .compiler import Compiled, CompileRequest, compile_source
from .errors import CacheMissError, CompileError, DriverError, ToolchainError
from .log import Resources
from .toolchain import Toolchain, available_toolchains, default_toolchain

__all__ = [
    "CacheMissError",
    "CompileError",
    "CompileRequest",
    "Compiled",
    "DriverError",
    "Resources",
    "Toolchain",
    "ToolchainError",
    "available_toolchains",
    "compile_source",
    "default_toolchain",
]
