"""Compiling: the same bytes every time, and errors that a person can use."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cute_attn.runtime import (
    CompileError,
    CompileRequest,
    Toolchain,
    ToolchainError,
    compile_source,
    count_opcodes,
    disassemble,
)
from cute_attn.runtime.compiler import compile_ptx
from cute_attn.runtime.disassemble import find_nvdisasm
from cute_attn.runtime.toolchain import available_toolchains

each_toolchain = pytest.mark.parametrize("toolchain", available_toolchains(), ids=str)

CUTE = """#include <cute/arch/copy_sm80.hpp>
#include <cute/arch/mma_sm80.hpp>
extern "C" __global__ void k(cute::uint128_t const* x, float* y) {
  __shared__ cute::uint128_t tile[32];
  cute::SM80_CP_ASYNC_CACHEGLOBAL<cute::uint128_t>::copy(x[threadIdx.x], tile[threadIdx.x]);
  cute::cp_async_fence();
  cute::cp_async_wait<0>();
  __syncthreads();
  auto const* a = reinterpret_cast<uint32_t const*>(tile);
  float d[4] = {};
  cute::SM80_16x8x16_F32BF16BF16F32_TN::fma(d[0], d[1], d[2], d[3], a[0], a[1], a[2], a[3], a[4],
                                            a[5], d[0], d[1], d[2], d[3]);
  y[threadIdx.x] = d[0];
}
"""


@each_toolchain
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_cute_kernel_compiles(toolchain: Toolchain, arch: str) -> None:
    compiled = compile_source(CompileRequest(CUTE, "k", arch, toolchain=toolchain))
    assert compiled.cubin[:4] == b"\x7fELF"
    assert compiled.lint() == []
    assert compiled.toolchain == toolchain
    assert (compiled.ptx is None) == (toolchain.assembler == "nvrtc")
    if find_nvdisasm() is not None:
        opcodes = count_opcodes(disassemble(compiled.cubin))
        assert opcodes["HMMA"] == 1 and opcodes["LDGSTS"] == 1


@each_toolchain
def test_equal_requests_give_equal_bytes_wherever_headers_are(
    toolchain: Toolchain, tmp_path: Path
) -> None:
    cubins = set()
    for folder in (tmp_path / "a", tmp_path / "somewhere/else"):
        folder.mkdir(parents=True)
        (folder / "twice.hpp").write_text(
            "template <class T> __device__ T twice(T x) { return x + x; }\n"
        )
        source = (
            '#include "twice.hpp"\nextern "C" __global__ void k(float* p) { p[0] = twice(p[1]); }\n'
        )
        request = CompileRequest(source, "k", "sm_90a", (folder,), toolchain=toolchain)
        cubins |= {compile_source(request).cubin, compile_source(request).cubin}
    assert len(cubins) == 1


def test_another_process_gives_equal_bytes(
    compiler: None, scale_source: str, tmp_path: Path
) -> None:
    code = (
        "import sys; from cute_attn.runtime import *\n"
        "r = CompileRequest(sys.argv[1], 'scale', 'sm_80')\n"
        "open(sys.argv[2], 'wb').write(compile_source(r).cubin)"
    )
    other = tmp_path / "other.cubin"
    subprocess.run([sys.executable, "-c", code, scale_source, str(other)], check=True)
    assert (
        other.read_bytes() == compile_source(CompileRequest(scale_source, "scale", "sm_80")).cubin
    )


@each_toolchain
def test_line_info_reaches_both_assemblers(
    toolchain: Toolchain, scale_source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = CompileRequest(scale_source, "scale", "sm_90a", toolchain=toolchain)
    assert b".debug_line" not in compile_source(request).cubin
    monkeypatch.setenv("CUTE_ATTN_LINEINFO", "1")
    assert b".debug_line" in compile_source(request).cubin


def test_ptx_on_demand(compiler: None, scale_source: str) -> None:
    ptx = compile_ptx(CompileRequest(scale_source, "scale", "sm_90a"))
    assert ".target sm_90a" in ptx and ".visible .entry scale(" in ptx


def test_an_error_shows_the_users_own_line_and_the_dumped_source(
    compiler: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_ATTN_DUMP_DIR", str(tmp_path / "dump"))
    source = (
        'extern "C" __global__ void k(float* p) {\n'
        '#line 41 "my_variant.py"\n'
        "  p[0] = tanhh(p[1]);\n"
        "}\n"
    )
    with pytest.raises(CompileError) as caught:
        compile_source(CompileRequest(source, "k", "sm_80"))
    error = caught.value
    assert 'my_variant.py(41): error: identifier "tanhh" is undefined' in str(error)
    assert error.errors[0].startswith("my_variant.py(41): error")
    assert error.source_path is not None and error.source_path.read_text() == source
    assert str(error.source_path) in str(error)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.log, again.source_path) == (str(error), error.log, error.source_path)


@each_toolchain
def test_a_missing_header_is_hinted_at(toolchain: Toolchain) -> None:
    source = '#include <no/such.hpp>\nextern "C" __global__ void k() {}\n'
    with pytest.raises(CompileError, match="hint: a header is missing"):
        compile_source(CompileRequest(source, "k", "sm_80", toolchain=toolchain))


@each_toolchain
def test_an_assembler_error_is_a_compile_error(toolchain: Toolchain) -> None:
    source = 'extern "C" __global__ void k() { asm volatile("wgmma.fence.sync.aligned;"); }'
    with pytest.raises(CompileError, match="sm_80") as caught:
        compile_source(CompileRequest(source, "k", "sm_80", toolchain=toolchain))
    assert "wgmma" in str(caught.value)


def test_the_entry_must_exist(compiler: None, scale_source: str) -> None:
    with pytest.raises(CompileError, match=r"no kernel is named 'scales' \(kernels: scale\)"):
        compile_source(CompileRequest(scale_source, "scales", "sm_80"))


def test_an_unknown_architecture_is_refused(compiler: None, scale_source: str) -> None:
    with pytest.raises(CompileError, match="architecture"):
        compile_source(CompileRequest(scale_source, "scale", "sm_42"))


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("arch", "compute_90", "arch='compute_90'"),
        ("arch", "sm90", "arch='sm90'"),
        ("name", "a::b", "name='a::b'"),
        ("options", ("-I/usr/include",), "include_dirs"),
        ("options", ("--gpu-architecture=sm_80",), "arch"),
        ("options", ("--pch",), "precompiled headers"),
    ],
)
def test_bad_requests_name_the_field(field: str, value: Any, text: str) -> None:
    fields: dict[str, Any] = {"source": "", "name": "k", "arch": "sm_80", field: value}
    with pytest.raises(ValueError, match=text):
        CompileRequest(**fields)


def test_a_recorded_toolchain_cannot_compile(scale_source: str) -> None:
    recorded = Toolchain("13.9.9", None, "0" * 16)
    request = CompileRequest(scale_source, "scale", "sm_80", toolchain=recorded)
    with pytest.raises(ToolchainError, match=r"nvrtc-13\.9\.9 is only recorded"):
        compile_source(request)


def test_dump_dir_gets_every_part(
    compiler: None, scale_source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_ATTN_DUMP_DIR", str(tmp_path / "dump"))
    compiled = compile_source(CompileRequest(scale_source, "scale", "sm_80"))
    assert (tmp_path / "dump/scale.sm_80.cu").read_text() == scale_source
    assert (tmp_path / "dump/scale.sm_80.cubin").read_bytes() == compiled.cubin
    assert "registers" in (tmp_path / "dump/scale.sm_80.log").read_text()
