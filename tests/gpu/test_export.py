"""Bundles on a GPU: the C++ example runs its steps, and `load_bundle` serves a batch without a
compiler.

The bundle and the example are made here, which takes compilers, or were made elsewhere:
CUTE_ATTN_BUNDLE_EXAMPLE names their folder (see tests/export/carry.py).
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cute_attn import BatchAttention, BundleError, PagedKV, Problem, causal, load_bundle
from tests.export.carry import BUNDLE, PROGRAM, build_example, export_for
from tests.export.compilers import CXX
from tests.export.steps import GROUP, HEAD_DIM, NUM_KV_HEADS, PAGE_SIZE, STEPS, Step, write_step

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(arch: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the bundle and the program."""
    carried = os.environ.get("CUTE_ATTN_BUNDLE_EXAMPLE")
    if carried:
        return Path(carried)
    if CXX is None:
        pytest.skip("no C++ compiler, and no CUTE_ATTN_BUNDLE_EXAMPLE")
    made = tmp_path_factory.mktemp("export")
    export_for(arch, made)
    build_example(made)
    return made


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_the_example_is_right(step: Step, folder: Path, arch: str, tmp_path: Path) -> None:
    result = subprocess.run(
        [folder / PROGRAM, folder / BUNDLE, write_step(step, tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    print(result.stdout)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.startswith("ok ")
    if arch == "sm_90a":
        by_maps = step.name in ("prefill", "mixed")
        assert ("no tensor maps" not in result.stdout) == by_maps
    assert ("merge kernel" in result.stdout) == (
        step.schedule == "ampere_tile" or (arch != "sm_90a" and step.name != "decode")
    )
    if step.name.startswith("mixed"):
        assert " 0 split" not in result.stdout


def test_a_batch_runs_from_a_bundle_as_from_the_compiler(
    folder: Path, device: torch.device
) -> None:
    bundle = load_bundle(folder / BUNDLE)
    qo_indptr = [0, 256, 257, 258]
    kv = PagedKV([0, 100, 150, 200], list(range(200)), [3, 16, 1], PAGE_SIZE)
    heads = NUM_KV_HEADS * GROUP
    q = torch.randn(258, heads, HEAD_DIM, dtype=torch.bfloat16, device=device)
    cache = torch.randn(
        200, 2, PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16, device=device
    )
    results = []
    for source in (bundle, None):
        batch = BatchAttention(heads, NUM_KV_HEADS, HEAD_DIM, variant="causal", bundle=source)
        for indptr in (qo_indptr, [0, 1, 2, 3]):
            batch.plan(indptr, kv)
            results += batch.run(q[: indptr[-1]], cache, return_lse=True)
    half = len(results) // 2
    for found, expected in zip(results[:half], results[half:], strict=True):
        assert torch.equal(found, expected)


def test_what_the_bundle_has_not_is_refused(folder: Path) -> None:
    bundle = load_bundle(folder / BUNDLE)
    batch = BatchAttention(8, 8, 64, dtype=torch.float16, variant="full", bundle=bundle)
    with pytest.raises(BundleError, match="has no kernel"):
        batch.plan([0, 1], PagedKV([0, 1], [0], [1], PAGE_SIZE))


def test_a_bundle_runs_where_nothing_can_compile(folder: Path, tmp_path: Path) -> None:
    """In a process with an empty cache, in which asking for a compiler is an error."""
    code = f"""
import torch, cute_attn.runtime.build as build, cute_attn.runtime.toolchain as toolchain
def refuse(*_, **__): raise AssertionError("a compiler is asked for")
build.compile_source = build.default_toolchain = toolchain.default_toolchain = refuse
from cute_attn import BatchAttention, PagedKV, load_bundle
batch = BatchAttention(32, 8, {HEAD_DIM}, bundle=load_bundle({str(folder / BUNDLE)!r}))
batch.plan([0, 1], PagedKV([0, 3], [0, 1, 2], [5], {PAGE_SIZE}))
ones = dict(dtype=torch.bfloat16, device="cuda")
q = torch.ones(1, 32, {HEAD_DIM}, **ones)
cache = torch.ones(3, 2, {PAGE_SIZE}, 8, {HEAD_DIM}, **ones)
assert bool((batch.run(q, cache) == 1).all())
"""
    settings = {"CUTE_ATTN_CACHE_DIR": str(tmp_path), "CUTE_ATTN_NO_COMPILE": "1"}
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_a_bundle_for_other_gpus_is_refused(folder: Path, arch: str, tmp_path: Path) -> None:
    other = "sm_80" if arch != "sm_80" else "sm_86"
    problem = Problem(other, "bf16", HEAD_DIM, HEAD_DIM, GROUP, causal(), PAGE_SIZE)
    bundle = load_bundle(folder / f"{BUNDLE}-{other}")
    assert bundle.manifest.archs == (problem.arch,)
    with pytest.raises(BundleError, match=f"has code for {other}, but GPU 0"):
        BatchAttention(8, 2, HEAD_DIM, bundle=bundle)
