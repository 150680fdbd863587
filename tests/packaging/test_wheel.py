"""The built wheel: one name in site-packages, everything inside, usable in a clean environment.

The tree is copied before the build, so that stale files of an earlier `build/` cannot slip in.
The clean environment sees the dependencies of the running one through a .pth line, which does not
carry this checkout's editable install along.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKED = ("cute_attn", "codegen", "hopper", "ampere", "pyproject.toml", "README.md", "LICENSE")


def run(*command: str | Path, cwd: Path, **variables: str) -> str:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONHOME")}
    result = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=environment | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what gets packed, links kept as links."""
    tree = tmp_path_factory.mktemp("tree")
    for name in PACKED:
        if (ROOT / name).is_dir():
            shutil.copytree(
                ROOT / name,
                tree / name,
                symlinks=True,
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
            )
        else:
            shutil.copy(ROOT / name, tree / name)
    return tree


@pytest.fixture(scope="module")
def source_files(tree: Path) -> set[str]:
    """Paths the wheel must hold, as installed: all below `cute_attn`, links followed."""
    return {
        (Path(directory) / name).relative_to(tree).as_posix()
        for directory, _, files in os.walk(tree / "cute_attn", followlinks=True)
        for name in files
    }


@pytest.fixture(scope="module")
def dist(tree: Path, source_files: set[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist from the copy and the wheel from that sdist."""
    assert "cute_attn/hopper/__init__.py" in source_files
    out = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", out, tree, cwd=out)
    return out


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    (path,) = dist.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def clean_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Interpreter of a fresh environment that holds the wheel and sees our dependencies."""
    home = tmp_path_factory.mktemp("clean")
    run(sys.executable, "-m", "venv", "--without-pip", home / "venv", cwd=home)
    python = home / "venv" / "bin" / "python"
    run(
        *(sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python),
        *("install", "--no-deps", "--no-index", wheel),
        cwd=home,
    )
    site = site_packages(python)
    assert {entry.name.partition("-")[0] for entry in site.iterdir()} == {"cute_attn"}
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def site_packages(python: Path) -> Path:
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    return Path(run(python, "-I", "-c", code, cwd=python.parent).strip())


def test_wheel_holds_the_tree_and_nothing_else(wheel: Path, source_files: set[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
    inside = {name for name in names if ".dist-info/" not in name}
    assert inside == source_files


def test_sdist_keeps_the_top_level_folders(dist: Path, source_files: set[str]) -> None:
    (path,) = dist.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        files = {m.name.partition("/")[2] for m in archive.getmembers() if m.isfile()}
    for name in source_files:
        room = name.removeprefix("cute_attn/")
        at_top = room.split("/")[0] in ("codegen", "hopper", "ampere")
        assert (room if at_top else name) in files


def test_installed_package_is_the_wheels(clean_python: Path, tmp_path: Path) -> None:
    code = "import cute_attn, cute_attn.hopper as h; print(cute_attn.__file__); print(h.__file__)"
    files = run(clean_python, "-c", code, cwd=tmp_path).splitlines()
    site = site_packages(clean_python)
    assert [Path(file) for file in files] == [
        site / "cute_attn" / "__init__.py",
        site / "cute_attn" / "hopper" / "__init__.py",
    ]


@pytest.mark.parametrize("name", ["codegen", "hopper", "ampere", "tests", "perf"])
def test_no_generic_name_is_importable(clean_python: Path, tmp_path: Path, name: str) -> None:
    code = f"import importlib.util; print(importlib.util.find_spec({name!r}))"
    assert run(clean_python, "-c", code, cwd=tmp_path).strip() == "None"


def test_command_line_of_the_wheel(clean_python: Path, tmp_path: Path) -> None:
    facts = json.loads(run(clean_python.parent / "cute-attn", "info", "--json", cwd=tmp_path))
    assert facts["cute_attn"]["path"] == str(site_packages(clean_python) / "cute_attn")


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_wheel_compiles_a_kernel(clean_python: Path, tmp_path: Path, arch: str) -> None:
    """Templates and headers of the wheel, and nothing of the checkout, make a cubin."""
    code = f"""
import json
import cute_attn
problem = cute_attn.Problem(
    arch={arch!r}, dtype="bf16", head_dim_qk=128, head_dim_vo=128, group=4,
    variant=cute_attn.causal(), page_size=16,
)
kernel = cute_attn.build(cute_attn.choose(problem, rows=None))
print(json.dumps({{
    "magic": kernel.compiled.cubin[:4].hex(),
    "registers": kernel.resources.registers,
    "include_dirs": [str(path) for path in kernel.generated.include_dirs],
}}))
"""
    answer = json.loads(
        run(clean_python, "-c", code, cwd=tmp_path, CUTE_ATTN_CACHE_DIR=str(tmp_path / "cache"))
    )
    assert answer["magic"] == b"\x7fELF".hex()
    assert answer["registers"] > 32
    site = site_packages(clean_python)
    assert answer["include_dirs"]
    assert all(Path(path).is_relative_to(site) for path in answer["include_dirs"])
