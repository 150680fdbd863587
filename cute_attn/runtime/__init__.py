"""Compile, cache, load and launch CUDA kernels: source text in, launches out.

Knows nothing of attention. `build_kernel` and `compile_many` give a `CompiledKernel`; its
``module`` goes to a `Launcher`. Nothing here needs a GPU before a module is loaded, and nothing
needs a compiler on a cache hit.
"""

from cute_attn.runtime import cost_files
from cute_attn.runtime.build import build_kernel, find_kernel, forget_kernels
from cute_attn.runtime.cache import DiskCache, cache_key
from cute_attn.runtime.compiler import Compiled, CompileRequest, compile_source
from cute_attn.runtime.device import (
    DeviceInfo,
    current_device,
    default_arch,
    device_count,
    device_info,
    supports_arch,
)
from cute_attn.runtime.disassemble import count_opcodes, disassemble
from cute_attn.runtime.errors import CacheMissError, CompileError, DriverError, ToolchainError
from cute_attn.runtime.kernel import CompiledKernel
from cute_attn.runtime.launch import Launcher, ParamsBlock
from cute_attn.runtime.log import Resources
from cute_attn.runtime.module import KernelAttributes, Module
from cute_attn.runtime.pool import CompilePool, compile_many
from cute_attn.runtime.tensor_map import TensorMapEncoder, TensorMapSpec, replace_address
from cute_attn.runtime.toolchain import Toolchain, available_toolchains, default_toolchain

__all__ = [
    "CacheMissError",
    "CompileError",
    "CompilePool",
    "CompileRequest",
    "Compiled",
    "CompiledKernel",
    "DeviceInfo",
    "DiskCache",
    "DriverError",
    "KernelAttributes",
    "Launcher",
    "Module",
    "ParamsBlock",
    "Resources",
    "TensorMapEncoder",
    "TensorMapSpec",
    "Toolchain",
    "ToolchainError",
    "available_toolchains",
    "build_kernel",
    "cache_key",
    "compile_many",
    "compile_source",
    "cost_files",
    "count_opcodes",
    "current_device",
    "default_arch",
    "default_toolchain",
    "device_count",
    "device_info",
    "disassemble",
    "find_kernel",
    "forget_kernels",
    "replace_address",
    "supports_arch",
]
