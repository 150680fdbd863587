"""The disk cache and `build_kernel`: hits, misses, races, damage, carried caches."""

from __future__ import annotations

import dataclasses
import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cute_attn.runtime import (
    CacheMissError,
    CompileRequest,
    Toolchain,
    ToolchainError,
    build_kernel,
    cache_key,
    default_toolchain,
    find_kernel,
    forget_kernels,
)


@pytest.fixture
def request_(compiler: None, scale_source: str) -> CompileRequest:
    return CompileRequest(scale_source, "scale", "sm_80")


def only_entry(cache_dir: Path, arch: str = "sm_80") -> Path:
    (entry,) = (cache_dir / "v1" / arch).iterdir()
    return entry


def test_an_entry_holds_source_cubin_and_meta(
    request_: CompileRequest, cache_dir: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "cute_attn"):
        kernel = build_kernel(request_)
    entry = only_entry(cache_dir)
    assert entry.name == cache_key(request_, default_toolchain())
    assert {path.name for path in entry.iterdir()} == {"kernel.cu", "kernel.cubin", "meta.json"}
    assert (entry / "kernel.cu").read_text() == kernel.source == request_.source
    assert (entry / "kernel.cubin").read_bytes() == kernel.cubin
    meta = json.loads((entry / "meta.json").read_text())
    assert meta["toolchain"]["nvrtc"] == default_toolchain().nvrtc
    assert str(cache_dir) not in json.dumps(meta)
    assert not list((cache_dir / "v1/tmp").iterdir())
    first = caplog.records[0].getMessage()
    assert first.startswith("compiling kernel scale for sm_80") and str(entry) in first


def test_hits_in_memory_and_on_disk(request_: CompileRequest) -> None:
    compiled = build_kernel(request_)
    assert not compiled.from_cache
    assert build_kernel(request_) is compiled
    forget_kernels()
    loaded = build_kernel(request_)
    assert loaded.from_cache
    assert (loaded.cubin, loaded.log, loaded.resources) == (
        compiled.cubin,
        compiled.log,
        compiled.resources,
    )
    assert loaded.compile_seconds == pytest.approx(compiled.compile_seconds, abs=1e-3)


def test_a_warm_load_takes_at_most_ten_milliseconds(request_: CompileRequest) -> None:
    build_kernel(request_)
    seconds = []
    for _ in range(5):
        forget_kernels()
        start = time.perf_counter()
        assert build_kernel(request_).from_cache
        seconds.append(time.perf_counter() - start)
    assert min(seconds) < 0.010


def test_everything_that_shapes_the_cubin_is_in_the_key(
    request_: CompileRequest, tmp_path: Path
) -> None:
    tool = default_toolchain()
    (tmp_path / "own.hpp").write_text("int x;\n")
    with_header = dataclasses.replace(
        request_, source='#include "own.hpp"\n' + request_.source, include_dirs=(tmp_path,)
    )
    keys = {
        cache_key(request_, tool),
        cache_key(dataclasses.replace(request_, source=request_.source + "\n"), tool),
        cache_key(dataclasses.replace(request_, arch="sm_86"), tool),
        cache_key(dataclasses.replace(request_, name="other"), tool),
        cache_key(dataclasses.replace(request_, options=("--ftz=true",)), tool),
        cache_key(request_, dataclasses.replace(tool, nvrtc="99.1.2")),
        cache_key(request_, dataclasses.replace(tool, ptxas="99.1.2")),
        cache_key(request_, dataclasses.replace(tool, headers="0" * 16)),
        cache_key(with_header, tool),
    }
    (tmp_path / "own.hpp").write_text("int y;\n")
    keys.add(cache_key(with_header, tool))
    assert len(keys) == 10
    # Paths, and directories that nothing is included from, are not in it.
    assert cache_key(dataclasses.replace(request_, include_dirs=(tmp_path,)), tool) in keys
    elsewhere = dataclasses.replace(tool, tools=None, packages=())
    assert cache_key(request_, elsewhere) in keys


WORKER = """
import logging, sys, time
logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(message)s")
from cute_attn.runtime import CompileRequest, build_kernel
request = CompileRequest(sys.argv[1], "scale", "sm_80")
time.sleep(max(0.0, float(sys.argv[2]) - time.time()))
kernel = build_kernel(request)
print("cubin", len(kernel.cubin), kernel.from_cache)
"""


def test_of_many_processes_one_compiles(request_: CompileRequest, cache_dir: Path) -> None:
    # A few hundred milliseconds of compile, so that everybody arrives during it.
    source = "#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" + request_.source
    start = str(time.time() + 1.5)
    command = [sys.executable, "-c", WORKER, source, start]
    processes = [
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ.copy())
        for _ in range(4)
    ]
    outputs = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sum("compiling kernel" in output for output in outputs) == 1
    assert sum(output.rstrip().endswith("False") for output in outputs) == 1
    only_entry(cache_dir)


@pytest.mark.parametrize("damage", ["flip", "cut", "empty", "no cubin", "no meta", "odd meta"])
def test_a_damaged_entry_is_moved_away_and_compiled_again(
    request_: CompileRequest, cache_dir: Path, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    kernel = build_kernel(request_)
    entry = only_entry(cache_dir)
    cubin, meta = entry / "kernel.cubin", entry / "meta.json"
    if damage == "flip":
        data = bytearray(kernel.cubin)
        data[len(data) // 2] ^= 1
        cubin.write_bytes(data)
    elif damage == "cut":
        cubin.write_bytes(kernel.cubin[:-1])
    elif damage == "empty":
        cubin.write_bytes(b"")
    elif damage == "no cubin":
        cubin.unlink()
    elif damage == "no meta":
        meta.unlink()
    else:
        meta.write_text('{"cubin": []}')
    forget_kernels()
    again = build_kernel(request_)
    assert not again.from_cache and again.cubin == kernel.cubin
    assert "damaged cache entry" in caplog.text
    assert len(list((cache_dir / "v1/quarantine").iterdir())) == 1
    forget_kernels()
    assert build_kernel(request_).from_cache


def test_an_unwritable_directory_means_memory_only_with_one_warning(
    request_: CompileRequest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    (tmp_path / "file").write_text("not a directory")
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path / "file/cache"))
    kernel = build_kernel(request_)
    assert build_kernel(request_) is kernel
    other = build_kernel(dataclasses.replace(request_, arch="sm_86"))
    assert not kernel.from_cache and not other.from_cache
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1 and "CUTE_ATTN_CACHE_DIR" in warnings[0].getMessage()


def test_a_read_only_file_system_still_gives_hits(
    request_: CompileRequest,
    cache_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    build_kernel(request_)
    forget_kernels()

    def refuse(path: Path, *args: object, **kwargs: object) -> None:
        assert path.is_relative_to(cache_dir)
        raise OSError(errno.EROFS, "Read-only file system")

    for function in ("mkdir", "rename", "replace"):
        monkeypatch.setattr(Path, function, refuse)
    assert build_kernel(request_).from_cache
    assert not caplog.records
    other = dataclasses.replace(request_, arch="sm_86")
    assert not build_kernel(other).from_cache
    assert "Read-only file system" in caplog.text
    monkeypatch.undo()
    assert [path.name for path in (cache_dir / "v1").iterdir() if path.name == "sm_86"] == []


def test_no_compile_makes_a_miss_an_error(
    request_: CompileRequest, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    with pytest.raises(CacheMissError, match="scale for sm_80 is in no cache") as caught:
        build_kernel(request_)
    assert str(cache_dir) in str(caught.value)
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "0")
    kernel = build_kernel(request_)
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    forget_kernels()
    assert build_kernel(request_).cubin == kernel.cubin


def test_cache_0_writes_nothing(
    request_: CompileRequest, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_ATTN_CACHE", "0")
    kernel = build_kernel(request_)
    assert build_kernel(request_) is kernel
    assert not cache_dir.exists()


def test_force_compile_ignores_the_disk_once_per_process(
    request_: CompileRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    build_kernel(request_)
    forget_kernels()
    monkeypatch.setenv("CUTE_ATTN_FORCE_COMPILE", "1")
    kernel = build_kernel(request_)
    assert not kernel.from_cache
    assert build_kernel(request_) is kernel


def test_the_search_path_is_read_first_and_never_written(
    request_: CompileRequest,
    cache_dir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    build_kernel(request_)
    baked = tmp_path / "baked"
    cache_dir.rename(baked)
    monkeypatch.setenv("CUTE_ATTN_CACHE_PATH", f"{tmp_path / 'absent'}{os.pathsep}{baked}")
    forget_kernels()
    assert build_kernel(request_).from_cache
    assert not cache_dir.exists()

    (only_entry(baked) / "kernel.cubin").write_bytes(b"damaged")
    before = sorted(path for path in baked.rglob("*"))
    forget_kernels()
    assert not build_kernel(request_).from_cache
    assert "damaged cache entry" in caplog.text
    assert sorted(path for path in baked.rglob("*")) == before
    only_entry(cache_dir)


# --- A cache made elsewhere -----------------------------------------------------------------


@pytest.fixture
def carried(request_: CompileRequest, cache_dir: Path, tmp_path: Path) -> Path:
    """A cache directory with ``request_``'s kernel, carried from another machine."""
    build_kernel(request_)
    forget_kernels()
    target = tmp_path / "carried"
    shutil.move(cache_dir, target)
    return target


@pytest.fixture
def no_wheels(carried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without NVRTC, after the cache was made on one with it."""
    empty = tmp_path / "no-wheels"
    empty.mkdir()
    monkeypatch.setenv("CUTE_ATTN_WHEELS", str(empty))
    with pytest.raises(ToolchainError):
        default_toolchain()


@pytest.mark.usefixtures("no_wheels")
@pytest.mark.parametrize("variable", ["CUTE_ATTN_CACHE_DIR", "CUTE_ATTN_CACHE_PATH"])
@pytest.mark.parametrize("no_compile", ["0", "1"])
def test_a_carried_cache_hits_without_nvrtc(
    request_: CompileRequest,
    carried: Path,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    no_compile: str,
) -> None:
    monkeypatch.setenv(variable, str(carried))
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", no_compile)
    kernel = build_kernel(request_)
    assert kernel.from_cache and kernel.toolchain.tools is None
    assert build_kernel(request_) is kernel
    missing = dataclasses.replace(request_, arch="sm_89")
    expected = CacheMissError if no_compile == "1" else ToolchainError
    with pytest.raises(expected):
        build_kernel(missing)


@pytest.mark.usefixtures("no_wheels")
def test_the_whole_thing_in_a_process_of_its_own(request_: CompileRequest, carried: Path) -> None:
    code = (
        "import sys; from cute_attn.runtime import *\n"
        "k = build_kernel(CompileRequest(sys.argv[1], 'scale', 'sm_80'))\n"
        "print(len(k.cubin), k.from_cache, k.toolchain)"
    )
    variables = {"CUTE_ATTN_CACHE_PATH": str(carried), "CUTE_ATTN_NO_COMPILE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, request_.source],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert " True nvrtc-" in done.stdout


def rename_toolchain(directory: Path, toolchain: Toolchain, request: CompileRequest) -> None:
    """Make the one entry in ``directory`` the work of another toolchain, as if made with it."""
    entry = only_entry(directory)
    entry.rename(entry.with_name(cache_key(request, toolchain)))
    (record,) = (directory / "v1/toolchains").iterdir()
    record.write_text(json.dumps(toolchain.to_json()))


def test_another_nvrtc_here_masks_a_carried_cache_dir_unless_compiling_is_forbidden(
    request_: CompileRequest, carried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Toolchain("13.8.1", None, "f" * 16)
    rename_toolchain(carried, other, request_)
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(carried))
    assert find_kernel(request_) is None
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    kernel = build_kernel(request_)
    assert kernel.from_cache and kernel.toolchain == other


def test_the_search_path_is_trusted_with_any_toolchain(
    request_: CompileRequest, carried: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = Toolchain("13.8.1", "13.9.2", "f" * 16)
    rename_toolchain(carried, other, request_)
    monkeypatch.setenv("CUTE_ATTN_CACHE_PATH", str(carried))
    kernel = build_kernel(request_)
    assert kernel.from_cache and kernel.toolchain == other
    # ... but not with one that the caller or the environment did not ask for.
    forget_kernels()
    bound = dataclasses.replace(request_, toolchain=default_toolchain())
    assert find_kernel(bound) is None
    monkeypatch.setenv("CUTE_ATTN_TOOLCHAIN", default_toolchain().name)
    assert find_kernel(request_) is None
    monkeypatch.setenv("CUTE_ATTN_TOOLCHAIN", "nvrtc-13.8.1+ptxas")
    assert find_kernel(request_) is not None


@pytest.mark.usefixtures("no_wheels")
def test_a_recorded_toolchain_file_selects_the_key(
    request_: CompileRequest, carried: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (record,) = (carried / "v1/toolchains").iterdir()
    chosen = tmp_path / "toolchain.json"
    record.rename(chosen)  # the directory itself says nothing any more
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(carried))
    assert find_kernel(request_) is None
    monkeypatch.setenv("CUTE_ATTN_TOOLCHAIN", str(chosen))
    assert build_kernel(request_).from_cache
    chosen.write_text("[]")
    with pytest.raises(ToolchainError, match=r"toolchain\.json"):
        find_kernel(request_)
