"""NVRTC through its C interface (ctypes): one object per loaded library.

The ten calls used are the same in every NVRTC since 12.0, so this needs no binding package of a
matching version, and two versions can be loaded side by side (the cu12 check of the tests does
that). Calls release the GIL; NVRTC itself serialises them, which is why `pool` uses processes.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from cute_attn.runtime.errors import ToolchainError

_SUCCESS = 0


@dataclass(frozen=True)
class NvrtcOutput:
    """Result of one NVRTC run; ``cubin`` and ``ptx`` are empty unless ``ok`` and asked for."""

    ok: bool
    log: str
    cubin: bytes = b""
    ptx: bytes = b""


class Nvrtc:
    """One loaded ``libnvrtc``."""

    def __init__(self, path: Path) -> None:
        try:
            # NVRTC opens this companion by its bare name; 13.0 has no run path to find it with.
            for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(builtins))
            self._lib = ctypes.CDLL(str(path))
        except OSError as error:
            raise ToolchainError(f"cannot load NVRTC from {path}: {error}") from error
        self._lib.nvrtcGetErrorString.restype = ctypes.c_char_p
        self._lib.nvrtcSetPCHHeapSize.argtypes = [ctypes.c_size_t]
        self.path = path

    def version(self) -> tuple[int, int]:
        """(major, minor) of the library."""
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check(self._lib.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
        return major.value, minor.value

    def set_pch_heap(self, num_bytes: int) -> None:
        """Size of the arena that precompiled headers live in; must precede the first PCH compile.

        With the default (256 MiB) CuTe's headers overflow it and the first compile runs twice.
        """
        self._check(self._lib.nvrtcSetPCHHeapSize(num_bytes))

    def compile(
        self,
        source: str,
        options: Sequence[str],
        *,
        headers: Mapping[str, str] | None = None,
        to_ptx: bool = False,
    ) -> NvrtcOutput:
        """Compile ``source`` to a cubin (or PTX); ``headers`` (name -> text) go before all -I
        directories.
        """
        headers = headers or {}
        texts = (ctypes.c_char_p * len(headers))(*(text.encode() for text in headers.values()))
        names = (ctypes.c_char_p * len(headers))(*(name.encode() for name in headers))
        program = ctypes.c_void_p()
        # The program name goes into the cubin: a constant keeps equal sources byte-identical.
        self._check(
            self._lib.nvrtcCreateProgram(
                ctypes.byref(program), source.encode(), b"kernel.cu", len(headers), texts, names
            )
        )
        try:
            flags = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
            status = self._lib.nvrtcCompileProgram(program, len(options), flags)
            log = self._read(program, "nvrtcGetProgramLog").rstrip(b"\0").decode(errors="replace")
            if status != _SUCCESS:
                message: bytes = self._lib.nvrtcGetErrorString(status)
                return NvrtcOutput(False, log or message.decode())
            if to_ptx:
                return NvrtcOutput(True, log, ptx=self._read(program, "nvrtcGetPTX").rstrip(b"\0"))
            return NvrtcOutput(True, log, cubin=self._read(program, "nvrtcGetCUBIN"))
        finally:
            self._lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _read(self, program: ctypes.c_void_p, call: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(getattr(self._lib, f"{call}Size")(program, ctypes.byref(size)))
        buffer = ctypes.create_string_buffer(size.value)
        self._check(getattr(self._lib, call)(program, buffer))
        return buffer.raw

    def _check(self, status: int) -> None:
        if status != _SUCCESS:
            message: bytes = self._lib.nvrtcGetErrorString(status)
            raise ToolchainError(f"{self.path}: {message.decode()}")


@cache
def load_nvrtc(path: Path) -> Nvrtc:
    """The library at ``path``, loaded once per process (about 50 ms, so only when something
    compiles).
    """
    return Nvrtc(path)
