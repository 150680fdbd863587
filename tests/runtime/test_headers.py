"""Digests of headers: what a kernel sees changes them, where it lies does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cute_attn.runtime import CompileRequest, compile_source
from cute_attn.runtime.headers import (
    own_digest,
    own_headers,
    tuple_overlay,
    wheel_digest,
    wheel_version,
)
from cute_attn.runtime.nvrtc import load_nvrtc
from cute_attn.runtime.toolchain import default_toolchain

SOURCE = '#include <lib/outer.hpp>\n#include <cuda_fp16.h>\nextern "C" __global__ void k() {}\n'


@pytest.fixture
def include(tmp_path: Path) -> Path:
    folder = tmp_path / "include"
    (folder / "lib/detail").mkdir(parents=True)
    (folder / "lib/outer.hpp").write_text('#pragma once\n  #  include "detail/inner.hpp"\n')
    (folder / "lib/detail/inner.hpp").write_text('#include "../sibling.hpp"\nint inner();\n')
    (folder / "lib/sibling.hpp").write_text("int sibling();\n")
    (folder / "lib/unrelated.hpp").write_text("int unrelated();\n")
    return folder


def test_includes_are_followed_through_each_other(include: Path) -> None:
    names = set(own_headers(SOURCE, [include]))
    assert {Path(name).name for name in names} == {"outer.hpp", "inner.hpp", "sibling.hpp"}


@pytest.mark.parametrize("name", ["lib/outer.hpp", "lib/detail/inner.hpp", "lib/sibling.hpp"])
def test_an_edit_of_any_included_header_changes_the_digest(include: Path, name: str) -> None:
    before = own_digest(SOURCE, [include])
    with (include / name).open("a") as file:
        file.write("// edited\n")
    assert own_digest(SOURCE, [include]) != before


def test_an_edit_of_another_header_does_not(include: Path) -> None:
    before = own_digest(SOURCE, [include])
    (include / "lib/unrelated.hpp").write_text("int edited();\n")
    assert own_digest(SOURCE, [include]) == before


def test_the_place_does_not_matter(include: Path, tmp_path: Path) -> None:
    shutil.copytree(include, tmp_path / "copy/of/it")
    assert own_digest(SOURCE, [tmp_path / "copy/of/it"]) == own_digest(SOURCE, [include])


def test_the_first_directory_wins(include: Path, tmp_path: Path) -> None:
    before = own_digest(SOURCE, [include])
    override = tmp_path / "override"
    (override / "lib").mkdir(parents=True)
    (override / "lib/sibling.hpp").write_text("int other();\n")
    assert own_digest(SOURCE, [include, override]) == before
    (override / "lib/outer.hpp").write_text("int other();\n")
    assert own_headers(SOURCE, [override, include]) == {"lib/outer.hpp": b"int other();\n"}


def test_a_macro_include_takes_everything(include: Path) -> None:
    before = own_digest("#include CHOSEN\n", [include])
    (include / "lib/unrelated.hpp").write_text("int edited();\n")
    assert own_digest("#include CHOSEN\n", [include]) != before


def test_wheel_digest_sees_versions_and_hashes_but_no_paths(tmp_path: Path) -> None:
    def install(root: Path, content_hash: str, extra: str = "") -> str:
        info = root / "some_wheel-1.2.3.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        lines = [
            f"nvidia/include/a.h,sha256={content_hash},10",
            "nvidia/lib/x.so,sha256=zz,5",
            extra,
        ]
        (info / "RECORD").write_text("\n".join(lines))
        assert wheel_version(root, "some-wheel") == "1.2.3"
        return wheel_digest(root, ["some-wheel"], "nvidia/")

    first = install(tmp_path / "a", "aaaa")
    assert install(tmp_path / "b", "aaaa", "nvidia/include/__pycache__/x.pyc,,") == first
    assert install(tmp_path / "c", "bbbb") != first
    assert wheel_version(tmp_path / "a", "absent") is None


def test_the_tuple_overlay_turns_the_clashing_declarations_off(compiler: None) -> None:
    tools = default_toolchain().tools
    assert tools is not None
    overlay = tuple_overlay(tools.cutlass_include)
    for name, text in overlay.items():
        original = (tools.cutlass_include / name).read_text()
        assert text.count("#if") == original.count("#if")
        clash = text.index("struct tuple_size;")
        assert text.rindex("#if", 0, clash) == text.rindex("#if 0", 0, clash)


def test_the_overlay_compiles_in_place_of_the_originals(compiler: None) -> None:
    tools = default_toolchain().tools
    assert tools is not None
    source = (
        "#include <cute/tensor.hpp>\n"
        'extern "C" __global__ void k(int* p) {\n'
        "  auto shape = cute::make_shape(cute::Int<4>{}, p[1]);\n"
        "  p[0] = cute::get<1>(shape) * cute::tuple_size<decltype(shape)>::value;\n"
        "}\n"
    )
    options = ["--gpu-architecture=sm_80", "--std=c++17", "-default-device"]
    options += [f"-I{folder}" for folder in tools.include_dirs]
    overlay = tuple_overlay(tools.cutlass_include)
    output = load_nvrtc(tools.nvrtc).compile(source, options, headers=overlay)
    assert output.ok, output.log


def test_in_memory_headers_go_before_include_directories(compiler: None, include: Path) -> None:
    tools = default_toolchain().tools
    assert tools is not None
    source = '#include <lib/sibling.hpp>\nextern "C" __global__ void k(int* p) { p[0] = marker; }\n'
    nvrtc = load_nvrtc(tools.nvrtc)
    options = ["--gpu-architecture=sm_80", f"-I{include}"]
    headers = {"lib/sibling.hpp": "constexpr int marker = 7;\n"}
    assert not nvrtc.compile(source, options).ok
    assert nvrtc.compile(source, options, headers=headers).ok


def test_a_kernel_recompiles_when_its_header_changes(compiler: None, include: Path) -> None:
    source = '#include "lib/v.hpp"\nextern "C" __global__ void k(int* p) { p[0] = VALUE; }\n'
    (include / "lib/v.hpp").write_text("#define VALUE 1234567\n")
    first = compile_source(CompileRequest(source, "k", "sm_80", (include,)))
    (include / "lib/v.hpp").write_text("#define VALUE 7654321\n")
    second = compile_source(CompileRequest(source, "k", "sm_80", (include,)))
    assert first.cubin != second.cubin
