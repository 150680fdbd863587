"""Bundles: reproducible, verified before use, loaded where nothing can compile."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cute_attn import (
    BatchAttention,
    BundleError,
    Problem,
    document_mask,
    export_bundle,
    full,
    load_bundle,
)
from cute_attn.api import dispatch
from cute_attn.api.launches import cost_of
from cute_attn.codegen.kernels import emit_merge
from cute_attn.runtime import forget_kernels
from cute_attn.scheduler import BUILT_IN
from cute_attn.scheduler.constants_file import ConstantsFileError
from tests.export.conftest import PROBLEMS


def contents(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


def test_equal_inputs_give_equal_bytes(bundle_path: Path, tmp_path: Path) -> None:
    again = tmp_path / "a folder" / "other name"
    again.parent.mkdir()
    forget_kernels()
    export_bundle(again, PROBLEMS, jobs=1)
    assert contents(again) == contents(bundle_path)


@pytest.mark.slow
def test_cubins_compiled_twice_give_equal_bytes(
    bundle_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path / "cache"))
    forget_kernels()
    export_bundle(tmp_path / "again", PROBLEMS)
    assert contents(tmp_path / "again") == contents(bundle_path)


def test_all_files_are_in_the_manifest(bundle_path: Path) -> None:
    bundle = load_bundle(bundle_path)
    listed = {file.path for file in bundle.manifest.files}
    assert listed | {"manifest.json"} == set(contents(bundle_path))


def test_a_bundle_loads_without_a_compiler(bundle_path: Path, tmp_path: Path) -> None:
    """In a process that finds no NVRTC, no headers and no cache."""
    code = f"""
import cute_attn.runtime.nvrtc as nvrtc, cute_attn.runtime.toolchain as toolchain
def refuse(*_, **__): raise AssertionError("a compiler is asked for")
nvrtc.load_nvrtc = toolchain.default_toolchain = toolchain.available_toolchains = refuse
from cute_attn import load_bundle
print(len(load_bundle({str(bundle_path)!r}).kernels))
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "CUTE_ATTN_CACHE_DIR": str(tmp_path), "CUTE_ATTN_NO_COMPILE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) == 12


def test_kernels_of_a_bundle_are_those_that_are_compiled(bundle_path: Path) -> None:
    bundle = load_bundle(bundle_path)
    for problem in PROBLEMS:
        for spec in dispatch.all_specs(problem):
            kernel, generated = bundle.attention(spec), dispatch.emit(spec)
            assert kernel.spec == spec
            assert kernel.source == generated.text
            assert kernel.generated.params == generated.params or (
                kernel.generated.params.offsets == generated.params.offsets
            )
            assert kernel.compiled.cubin[:4] == b"\x7fELF"
            assert kernel.resources.registers > 0
            if not spec.fuses_merge:
                merge = emit_merge(spec.arch, "bf16", 128, spec.tile.q, 4, spec.variant)
                assert bundle.small(merge).source == merge.text


@pytest.mark.parametrize("place", ["kernels", "bundle.h", "include/cute_attn_bundle/bundle.h"])
def test_a_changed_file_is_found(damaged: Path, place: str) -> None:
    file = damaged / place
    if file.is_dir():
        file = next(file.glob("*.cubin"))
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(BundleError, match=f"{file.name}.* is not the file that was exported"):
        load_bundle(damaged)


def test_a_missing_file_is_found(damaged: Path) -> None:
    file = next((damaged / "kernels").glob("*.cu"))
    file.unlink()
    with pytest.raises(BundleError, match=f"lacks kernels/{file.name}"):
        load_bundle(damaged)


def test_files_outside_of_the_bundle_are_not_read(damaged: Path) -> None:
    file = damaged / "manifest.json"
    data = json.loads(file.read_bytes())
    data["files"].append({"path": "../secret", "bytes": 1, "sha256": "0"})
    file.write_text(json.dumps(data))
    with pytest.raises(BundleError, match="secret', which is outside of the bundle"):
        load_bundle(damaged)


def test_parameters_in_other_places_are_refused(damaged: Path) -> None:
    file = damaged / "manifest.json"
    data = json.loads(file.read_bytes())
    data["kernels"][0]["parameters"]["fields"][0]["offset"] += 8
    file.write_text(json.dumps(data))
    bundle = load_bundle(damaged)
    with pytest.raises(BundleError, match="not where the C\\+\\+ rules put them"):
        bundle.kernel(data["kernels"][0]["name"])


def test_another_plan_is_refused(damaged: Path) -> None:
    file = damaged / "manifest.json"
    data = json.loads(file.read_bytes())
    data["plan"]["cuts"].reverse()
    file.write_text(json.dumps(data))
    with pytest.raises(BundleError, match="plan of the bundle is laid out otherwise"):
        load_bundle(damaged)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="which is no bundle"):
        load_bundle(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(BundleError, match="no JSON"):
        load_bundle(tmp_path)


def test_a_gpu_without_code_is_refused_in_words(bundle_path: Path) -> None:
    bundle = load_bundle(bundle_path)
    bundle.check_device("sm_90a", "GPU 0 (H200)")
    with pytest.raises(
        BundleError, match=r"has code for sm_80, sm_90a, but GPU 0 \(L4\) is sm_89: .*--arch sm_89"
    ):
        bundle.check_device("sm_89", "GPU 0 (L4)")


def test_a_kernel_that_is_not_there_is_refused_in_words(bundle_path: Path) -> None:
    bundle = load_bundle(bundle_path)
    spec = dispatch.all_specs(Problem("sm_80", "fp16", 64, 64, 4, full(), None))[0]
    with pytest.raises(
        BundleError, match=r"has no kernel ampere_decode_fp16_d64_ragged.*sm_80 bf16"
    ):
        bundle.attention(spec)


def test_the_executor_takes_no_bundle(bundle_path: Path) -> None:
    with pytest.raises(ValueError, match=r"bundle is .* a bundle holds code of GPUs"):
        BatchAttention(32, 8, 128, device="cpu", bundle=load_bundle(bundle_path))


def test_bundles_are_written_whole_or_not_at_all(bundle_path: Path, tmp_path: Path) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        export_bundle(tmp_path / "new", PROBLEMS, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_folders_are_not_overwritten(bundle_path: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is there already"):
        export_bundle(bundle_path, PROBLEMS)
    (tmp_path / "mine").mkdir()
    with pytest.raises(BundleError, match="is no bundle, and so is not replaced"):
        export_bundle(tmp_path / "mine", PROBLEMS, replace=True)
    with pytest.raises(BundleError, match="there is no folder"):
        export_bundle(tmp_path / "a" / "b", PROBLEMS)
    with pytest.raises(BundleError, match="problems is empty"):
        export_bundle(tmp_path / "none", [])
    with pytest.raises(BundleError, match="a problem has per_head True"):
        export_bundle(tmp_path / "none", [replace(PROBLEMS[0], per_head=True)])


def test_a_bundle_is_replaced_when_asked(damaged: Path) -> None:
    (damaged / "more").write_text("x")
    export_bundle(damaged, PROBLEMS[:1], replace=True)
    assert load_bundle(damaged).manifest.archs == ("sm_80",)
    assert not (damaged / "more").exists()
    assert [file.name for file in damaged.parent.iterdir()] == [damaged.name]


def test_costs_are_those_of_the_constants(damaged: Path) -> None:
    before = load_bundle(damaged).manifest
    slow = replace(BUILT_IN, gpu=replace(BUILT_IN.gpu, name="slow", read_gbps=1000.0))
    after = export_bundle(damaged, PROBLEMS, costs=slow, replace=True)
    assert (before.costs_of, after.costs_of) == (BUILT_IN.gpu.name, "slow")
    for spec in dispatch.all_specs(PROBLEMS[0]):
        costs = [m.by_name[spec.name].attention.costs for m in (before, after)]  # type: ignore[union-attr]
        assert [vars(c) for c in costs] == [vars(cost_of(spec, x)) for x in (BUILT_IN, slow)]
        assert costs[0].key_ps < costs[1].key_ps
    with pytest.raises(ConstantsFileError, match=r"there\.json"):
        export_bundle(damaged, PROBLEMS, costs="there.json", replace=True)


def test_masks_that_need_ranges_of_tensors_are_refused(tmp_path: Path) -> None:
    problem = Problem("sm_80", "bf16", 128, 128, 4, document_mask(), 16)
    with pytest.raises(BundleError, match="'document' has a mask that reads tensors"):
        export_bundle(tmp_path / "x", [problem])
