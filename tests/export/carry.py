"""What the GPU tests of bundles take along to a machine without compilers:

    python -m tests.export.carry FOLDER --arch sm_90a
    CUTE_ATTN_BUNDLE_EXAMPLE=FOLDER pytest -m gpu tests/gpu/test_export.py

The folder holds a bundle, one for another architecture, and the example of examples/bundle as a
program. The tests write the steps.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from cute_attn import Problem, causal, export_bundle
from tests.export.compilers import CXX, compile_text
from tests.export.steps import GROUP, HEAD_DIM, PAGE_SIZE

BUNDLE, PROGRAM = "bundle", "run_bundle"
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "bundle"


def problem_for(arch: str) -> Problem:
    """What the steps are kernels for."""
    return Problem(arch, "bf16", HEAD_DIM, HEAD_DIM, GROUP, causal(), PAGE_SIZE)


def export_for(arch: str, folder: Path) -> None:
    """Writes the bundle, and one for another architecture."""
    other = "sm_80" if arch != "sm_80" else "sm_86"
    export_bundle(folder / BUNDLE, [problem_for(arch)], schedules=(None, "ampere_tile"))
    export_bundle(folder / f"{BUNDLE}-{other}", [problem_for(other)])


def build_example(folder: Path) -> None:
    """Compiles the example against the bundle of a folder."""
    bundle = folder / BUNDLE
    include = (f"-I{bundle}", f"-I{bundle / 'include'}")
    main = EXAMPLE / "main.cpp"
    compile_text(CXX, "-std=c++17", "-O2", *include, main, "-o", folder / PROGRAM, "-ldl")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90a")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    export_for(given.arch, given.folder)
    build_example(given.folder)
