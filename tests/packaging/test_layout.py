"""The package list, the data globs and the import names agree with the tree.

An editable install hides mistakes here: a package or data file that pyproject.toml forgets is
importable from a checkout and missing from the wheel.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
ROOMS_AT_TOP = ("codegen", "hopper", "ampere")


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def packages_in_tree() -> dict[str, Path]:
    """Map every import name below `cute_attn` to its directory, following the three links."""
    found = {}
    for directory, _, files in os.walk(ROOT / "cute_attn", followlinks=True):
        if "__init__.py" in files:
            found[".".join(Path(directory).relative_to(ROOT).parts)] = Path(directory)
    return found


def run_python(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )


def test_every_package_is_listed(project: dict[str, Any]) -> None:
    listed = project["tool"]["setuptools"]["packages"]
    assert listed == sorted(listed)
    assert set(listed) == set(packages_in_tree())


def test_every_python_file_is_in_a_package() -> None:
    directories = set(packages_in_tree().values())
    stray = [
        path
        for directory, _, files in os.walk(ROOT / "cute_attn", followlinks=True)
        for path in (Path(directory) / name for name in files)
        if path.suffix == ".py" and path.parent not in directories
    ]
    assert not stray, f"directories without __init__.py: {stray}"


def test_every_data_file_is_in_package_data(project: dict[str, Any]) -> None:
    globs = project["tool"]["setuptools"]["package-data"]
    packages = packages_in_tree()
    packed = {
        match
        for name, patterns in globs.items()
        for pattern in patterns
        for match in packages[name].glob(pattern)
    }
    present = {
        Path(directory) / name
        for directory, _, files in os.walk(ROOT / "cute_attn", followlinks=True)
        if "__pycache__" not in directory
        for name in files
        if not name.endswith((".py", ".pyc"))
    }
    assert present <= packed, f"missing from package-data: {sorted(present - packed)}"


@pytest.mark.parametrize("name", ROOMS_AT_TOP)
def test_room_link_points_to_the_top_level_folder(name: str) -> None:
    link = ROOT / "cute_attn" / name
    assert link.resolve() == ROOT / name
    assert os.readlink(link) == f"../{name}", "an absolute link breaks in every other checkout"


@pytest.mark.parametrize("name", ROOMS_AT_TOP)
def test_room_refuses_its_bare_name(name: str) -> None:
    spec = importlib.util.spec_from_file_location(name, ROOT / name / "__init__.py")
    assert spec is not None and spec.loader is not None
    with pytest.raises(ImportError, match=rf"cute_attn\.{name}"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_import_loads_nothing_heavy() -> None:
    code = """
import sys
import cute_attn
heavy = {"torch", "numpy", "cuda", "jinja2", "scipy", "rich", "typer"} & set(sys.modules)
sys.exit(f"import cute_attn loads {sorted(heavy)}" if heavy else 0)
"""
    result = run_python(code)
    assert result.returncode == 0, result.stderr


def test_import_works_without_torch(tmp_path: Path) -> None:
    code = """
import sys
sys.modules["torch"] = None  # every `import torch` now raises ImportError
import cute_attn, cute_attn.codegen, cute_attn.hopper, cute_attn.ampere
print(cute_attn.__version__)
"""
    result = run_python(code, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()
