"""Finding compilers in wheels: layouts, versions, order of preference, and what is missing."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest

from cute_attn.runtime import Toolchain, ToolchainError, available_toolchains, default_toolchain
from cute_attn.runtime.nvrtc import load_nvrtc
from cute_attn.runtime.toolchain import rank, version_key

_fresh = itertools.count()


class Wheels:
    """A site directory with empty files where wheels put theirs."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root / f"site{next(_fresh)}"
        self.root.mkdir()
        self.file("cutlass_library/source/include/cutlass/cutlass.h")
        self.dist("nvidia_cutlass", "4.2.0.0")
        monkeypatch.setenv("CUTE_ATTN_WHEELS", str(self.root))

    def file(self, *paths: str) -> Wheels:
        for path in paths:
            (self.root / path).parent.mkdir(parents=True, exist_ok=True)
            (self.root / path).touch()
        return self

    def dist(self, name: str, version: str) -> Wheels:
        self.file(f"{name}-{version}.dist-info/RECORD")
        return self

    def cu13(self, nvrtc: str, cccl: str = "13.1.115", ptxas: str | None = None) -> Wheels:
        include = "nvidia/cu13/include"
        self.file(f"{include}/cuda_runtime_api.h", f"{include}/crt/host_defines.h")
        self.file("nvidia/cu13/lib/libnvrtc.so.13", f"{include}/cccl/cuda/std/utility")
        self.dist("nvidia_cuda_nvrtc", nvrtc).dist("nvidia_cuda_cccl", cccl)
        if ptxas is not None:
            self.file("nvidia/cu13/bin/ptxas").dist("nvidia_cuda_nvcc", ptxas)
        return self

    def cu12(self, nvrtc: str) -> Wheels:
        self.file("nvidia/cuda_nvrtc/lib/libnvrtc.so.12")
        self.file("nvidia/cuda_runtime/include/cuda_runtime_api.h")
        self.file("nvidia/cuda_cccl/include/cuda/std/utility")
        self.file("nvidia/cuda_nvcc/include/crt/host_defines.h", "nvidia/cuda_nvcc/bin/ptxas")
        self.dist("nvidia_cuda_nvrtc_cu12", nvrtc).dist("nvidia_cuda_cccl_cu12", "12.9.27")
        return self.dist("nvidia_cuda_nvcc_cu12", nvrtc)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheels:
    return Wheels(tmp_path, monkeypatch)


def test_the_installed_compiler_says_the_version_of_its_wheel(compiler: None) -> None:
    toolchain = default_toolchain()
    assert toolchain.tools is not None
    major_minor = load_nvrtc(toolchain.tools.nvrtc).version()
    assert major_minor == version_key(toolchain.nvrtc)[:2]
    assert all(folder.is_dir() for folder in toolchain.tools.include_dirs)
    assert dict(toolchain.packages)["nvidia-cutlass"].startswith("4.")


def test_cu13_layout(wheels: Wheels) -> None:
    wheels.cu13("13.0.88")
    (toolchain,) = available_toolchains()
    assert toolchain.name == "nvrtc-13.0.88" and toolchain.assembler == "nvrtc"
    assert toolchain.tools is not None
    assert toolchain.tools.include_dirs == (
        wheels.root / "cutlass_library/source/include",
        wheels.root / "nvidia/cu13/include",
        wheels.root / "nvidia/cu13/include/cccl",
    )


def test_cu12_layout(wheels: Wheels) -> None:
    wheels.cu12("12.9.86")
    own, with_ptxas = available_toolchains()
    assert own.name == "nvrtc-12.9.86"
    assert with_ptxas.name == "nvrtc-12.9.86+ptxas-12.9.86"
    assert own.tools is not None and not own.tools.needs_tuple_overlay
    assert wheels.root / "nvidia/cuda_cccl/include" in own.tools.include_dirs


def test_order_of_preference_is_the_measured_one() -> None:
    best_first = [
        Toolchain("13.5.37", None, ""),
        Toolchain("13.0.88", "13.1.115", ""),
        Toolchain("13.0.88", "13.5.37", ""),
        Toolchain("13.0.88", "13.2.86", ""),
        Toolchain("13.0.88", None, ""),
        Toolchain("12.9.86", None, ""),
    ]
    assert sorted(reversed(best_first), key=rank) == best_first


def test_both_majors_side_by_side(wheels: Wheels) -> None:
    wheels.cu12("12.9.86").cu13("13.0.88", ptxas="13.1.115")
    names = [toolchain.name for toolchain in available_toolchains()]
    assert names == [
        "nvrtc-13.0.88+ptxas-13.1.115",
        "nvrtc-13.0.88",
        "nvrtc-12.9.86",
        "nvrtc-12.9.86+ptxas-12.9.86",
    ]


def test_a_ptxas_older_than_nvrtc_is_not_offered(wheels: Wheels) -> None:
    wheels.cu13("13.5.37", ptxas="13.1.115")
    assert [toolchain.assembler for toolchain in available_toolchains()] == ["nvrtc"]


@pytest.mark.parametrize(
    ("cccl", "expected"), [("13.1.115", False), ("13.2.27", True), ("13.3.5.0.6", True)]
)
def test_new_cccl_gets_the_overlay_and_another_identity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cccl: str, expected: bool
) -> None:
    Wheels(tmp_path, monkeypatch).cu13("13.5.37", cccl="13.0.85")
    plain = default_toolchain()
    Wheels(tmp_path, monkeypatch).cu13("13.5.37", cccl=cccl)
    toolchain = default_toolchain()
    assert toolchain.tools is not None and toolchain.tools.needs_tuple_overlay == expected
    assert (toolchain.identity != plain.identity) == expected


@pytest.mark.parametrize(
    ("missing", "text"),
    [
        ("nvidia/cu13/lib/libnvrtc.so.13", "no NVRTC wheel"),
        ("nvidia/cu13/include/cccl/cuda/std/utility", "nvidia-cuda-cccl"),
        ("nvidia/cu13/include/crt/host_defines.h", "nvidia-cuda-crt"),
        ("nvidia_cuda_nvrtc-13.5.37.dist-info/RECORD", "dist-info"),
    ],
)
def test_what_is_missing_is_named_with_the_line_to_install_it(
    wheels: Wheels, missing: str, text: str
) -> None:
    wheels.cu13("13.5.37")
    (wheels.root / missing).unlink()
    if missing.endswith("RECORD"):
        (wheels.root / missing).parent.rmdir()
    with pytest.raises(ToolchainError, match=r'pip install "cute-attn\[cu13\]"') as caught:
        default_toolchain()
    assert text in str(caught.value)
    assert available_toolchains() == ()


def test_the_environment_chooses(wheels: Wheels, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels.cu12("12.9.86").cu13("13.0.88", ptxas="13.1.115")
    for wanted, expected in [
        ("nvrtc-13.0.88", "nvrtc-13.0.88"),
        ("nvrtc-13", "nvrtc-13.0.88+ptxas-13.1.115"),
        ("nvrtc-12", "nvrtc-12.9.86"),
        ("nvrtc", "nvrtc-13.0.88"),
        ("ptxas", "nvrtc-13.0.88+ptxas-13.1.115"),
    ]:
        monkeypatch.setenv("CUTE_ATTN_TOOLCHAIN", wanted)
        assert default_toolchain().name == expected, wanted
    monkeypatch.setenv("CUTE_ATTN_TOOLCHAIN", "nvrtc-11")
    with pytest.raises(ToolchainError, match=r"'nvrtc-11' matches none of: nvrtc-13\.0\.88"):
        default_toolchain()


def test_a_toolchain_survives_json_as_a_record(compiler: None) -> None:
    toolchain = default_toolchain()
    record = Toolchain.from_json(json.loads(json.dumps(toolchain.to_json())))
    assert record == toolchain and record.identity == toolchain.identity
    assert record.packages == toolchain.packages and record.tools is None


@pytest.mark.parametrize("data", [[], {}, {"nvrtc": 13, "headers": "x"}, {"nvrtc": "13.0"}])
def test_a_damaged_record_is_refused(data: object) -> None:
    with pytest.raises(ValueError, match="recorded toolchain"):
        Toolchain.from_json(data)


def test_a_broken_library_is_a_toolchain_error(tmp_path: Path) -> None:
    (tmp_path / "libnvrtc.so.13").write_bytes(b"no library")
    with pytest.raises(ToolchainError, match="cannot load NVRTC"):
        load_nvrtc(tmp_path / "libnvrtc.so.13")
