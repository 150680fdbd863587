"""What the package imports and what pyproject.toml declares are the same set.

An import that is not declared breaks a user's install and works here, where the test tools bring
much along; a dependency that nothing imports costs every user a download.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]

# Distributions that are found by path, not imported, or imported under another name.
IMPORT_NAMES = {"nvidia-cutlass": {"cutlass_library", "pycute"}}


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def imported_names(path: Path) -> Iterator[str]:
    """Top-level name of every absolute import in one file, function bodies included."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def third_party_imports() -> dict[str, Path]:
    found = {}
    for directory, _, files in os.walk(ROOT / "cute_attn", followlinks=True):
        for path in (Path(directory) / name for name in files if name.endswith(".py")):
            found.update(dict.fromkeys(imported_names(path), path))
    return {
        name: path
        for name, path in found.items()
        if name not in sys.stdlib_module_names and name != "cute_attn"
    }


def declared_imports(requirements: list[str]) -> set[str]:
    names = [re.split(r"[<>=!~; \[]", line)[0] for line in requirements]
    return {
        module
        for name in names
        for module in IMPORT_NAMES.get(name, {name.lower().replace("-", "_")})
    }


def test_every_import_is_a_declared_dependency(project: dict[str, Any]) -> None:
    extras = project["optional-dependencies"]
    # Imported where they are used.
    optional = [*extras["plot"], *extras["sparse"], *extras["transformers"]]
    declared = declared_imports([*project["dependencies"], *optional])
    undeclared = {n: str(p) for n, p in third_party_imports().items() if n not in declared}
    assert not undeclared


def test_every_dependency_is_used(project: dict[str, Any]) -> None:
    headers_only = IMPORT_NAMES["nvidia-cutlass"]
    assert declared_imports(project["dependencies"]) - headers_only <= set(third_party_imports())


def test_torch_is_a_range(project: dict[str, Any]) -> None:
    """Serving engines pin torch themselves: a pin or a cap of ours would make installs fail."""
    (torch,) = [line for line in project["dependencies"] if line.startswith("torch")]
    assert re.fullmatch(r"torch>=[\d.]+", torch)
