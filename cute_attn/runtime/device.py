"""Facts about the GPUs of this machine, and which cubins run on them. Works, and says so, without
any.
"""

from __future__ import annotations

import ctypes
import re
from dataclasses import dataclass
from functools import cache

from cute_attn.runtime import env
from cute_attn.runtime.driver import driver, has_driver
from cute_attn.runtime.errors import DriverError


@dataclass(frozen=True)
class DeviceInfo:
    """One GPU. ``arch`` is what to compile for ("sm_90a"); sizes in bytes; ``driver`` is the CUDA
    version it speaks.
    """

    index: int
    name: str
    arch: str
    num_sms: int
    smem_per_block_optin: int
    smem_per_sm: int
    registers_per_sm: int
    l2_bytes: int
    memory_bytes: int
    driver: str


def arch_of(major: int, minor: int) -> str:
    """Architecture to compile for: from compute capability 9.0 on the variant with wgmma and
    friends ("a").
    """
    return f"sm_{major}{minor}" + ("a" if major >= 9 else "")


def device_count() -> int:
    """Number of visible GPUs; 0 without a driver."""
    if not has_driver():
        return 0
    count = ctypes.c_int()
    driver().call("cuDeviceGetCount", ctypes.byref(count))
    return count.value


def current_device() -> int:
    """Ordinal of the calling thread's current device (as torch set it); raises DriverError without
    a driver.
    """
    return driver().current_device()


@cache
def device_info(index: int = 0) -> DeviceInfo:
    """Facts of GPU ``index``.

    Raises:
        DriverError: there is no driver, or no such GPU.
    """
    cuda = driver()
    count = device_count()
    if not 0 <= index < count:
        raise DriverError(f"device index={index}: there are {count} CUDA devices")
    device = cuda.device(index)
    name = ctypes.create_string_buffer(128)
    cuda.call("cuDeviceGetName", name, len(name), device)
    memory = ctypes.c_size_t()
    cuda.call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
    attribute = cuda.device_attribute
    return DeviceInfo(
        index=index,
        name=name.value.decode(),
        arch=arch_of(
            attribute("compute_capability_major", index),
            attribute("compute_capability_minor", index),
        ),
        num_sms=attribute("multiprocessor_count", index),
        smem_per_block_optin=attribute("max_shared_memory_per_block_optin", index),
        smem_per_sm=attribute("max_shared_memory_per_multiprocessor", index),
        registers_per_sm=attribute("max_registers_per_multiprocessor", index),
        l2_bytes=attribute("l2_cache_size", index),
        memory_bytes=memory.value,
        driver=cuda.version(),
    )


def default_arch() -> str | None:
    """``CUTE_ATTN_ARCH``, else the architecture of the current GPU, else None."""
    forced = env.ARCH.get()
    if forced is not None:
        return forced
    return device_info(current_device()).arch if device_count() else None


def supports_arch(cubin_arch: str, device_arch: str) -> list[str]:
    """Why a cubin for ``cubin_arch`` does not run on a ``device_arch``; empty when it does.

    A cubin runs on its own major compute capability and minor ones not below its own; with suffix
    "a" only on exactly that one.
    """
    cubin, device = capability_of(cubin_arch), capability_of(device_arch)
    if cubin[2] and cubin[:2] != device[:2]:
        return [f"a cubin for {cubin_arch} runs on compute capability {cubin[0]}.{cubin[1]} only"]
    if cubin[0] != device[0] or cubin[1] > device[1]:
        return [
            f"a cubin for {cubin_arch} runs on compute capability {cubin[0]}.x, x >= {cubin[1]}; "
            f"the GPU is {device_arch}"
        ]
    return []


def capability_of(arch: str) -> tuple[int, int, bool]:
    """(major, minor, exact) of the compute capability that code for ``arch`` runs on; ``exact``: on
    that minor one only.

    Raises:
        ValueError: ``arch`` is no architecture.
    """
    match = re.fullmatch(r"sm_(\d+)(\d)([af]?)", arch)
    if match is None:
        raise ValueError(f"arch={arch!r}: takes an architecture such as 'sm_90a'")
    return int(match[1]), int(match[2]), match[3] == "a"
