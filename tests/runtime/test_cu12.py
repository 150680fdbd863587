"""NVRTC 12.9 beside another NVRTC in one process, found through ``CUTE_ATTN_WHEELS``.

`make test` puts the CUDA 12 wheels into <environment>/cu12; that the real kernels compile with them
is checked in tests/packaging/test_cu12.py.
"""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cute_attn.runtime import (
    CompileRequest,
    available_toolchains,
    build_kernel,
    compile_source,
    default_toolchain,
)
from cute_attn.runtime.nvrtc import load_nvrtc

WHEELS = Path(sys.prefix) / "cu12"

pytestmark = pytest.mark.skipif(
    not WHEELS.is_dir(), reason=f"no CUDA 12 wheels in {WHEELS}; `make test` puts them there"
)


def test_both_assemblers_of_cuda_12(scale_source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_ATTN_WHEELS", str(WHEELS))
    own, with_ptxas = available_toolchains()
    assert (own.assembler, with_ptxas.assembler) == ("nvrtc", "ptxas")
    for toolchain in (own, with_ptxas):
        assert toolchain.tools is not None and toolchain.nvrtc.startswith("12.")
        assert load_nvrtc(toolchain.tools.nvrtc).version()[0] == 12
        request = CompileRequest(scale_source, "scale", "sm_90a", toolchain=toolchain)
        compiled = compile_source(request)
        assert compiled.cubin[:4] == b"\x7fELF" and compiled.lint() == []


def test_two_nvrtcs_in_one_process_keep_their_cache_entries_apart(
    scale_source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CompileRequest(scale_source, "scale", "sm_80")
    if default_toolchain().nvrtc.startswith("12."):
        pytest.skip("CUDA 12 is the only compiler here")
    first = build_kernel(request)
    with monkeypatch.context() as patch:
        patch.setenv("CUTE_ATTN_WHEELS", str(WHEELS))
        second = build_kernel(request)
        assert second.toolchain.nvrtc.startswith("12.")
        assert not second.from_cache and second.cubin != first.cubin
        assert build_kernel(request) is second
    assert build_kernel(request) is first
