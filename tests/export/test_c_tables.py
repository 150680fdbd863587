"""`bundle.h` compiles as C and C++ without a word of the compiler, and what a C program computes
with it is what Python computes."""

from __future__ import annotations

import math
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from cute_attn import (
    Problem,
    Variant,
    alibi,
    causal,
    chunked_local,
    full,
    load_bundle,
    sigmoid_attention,
    sliding_window,
    soft_cap,
)
from cute_attn.abi import UNBOUNDED
from cute_attn.api import dispatch
from cute_attn.api.parameters import scales_of
from cute_attn.api.tensor_maps import grouped_kv_map, kv_map, page_groups, q_map
from cute_attn.codegen.attention_params import page_division
from cute_attn.codegen.smem_tile import SWIZZLE_ROWS
from cute_attn.codegen.spec import KernelSpec
from cute_attn.export.c_header import bundle_header
from cute_attn.export.describe import parameter_struct
from cute_attn.export.manifest import Kernel
from cute_attn.export.problems import problem_entry
from cute_attn.export.recipes import recipes_of, resolve
from cute_attn.runtime.tensor_map import DATA_TYPES, L2_PROMOTIONS, SWIZZLES, TensorMapSpec
from tests.export.compilers import CC, CXX, compile_text, needs_cc, needs_cxx
from tests.export.conftest import PROBLEMS

TABLES = Path(__file__).parent / "tables.c"
SINGLE = Variant("band", mask=lambda b, h, q_idx, kv_idx: (kv_idx <= q_idx) & (kv_idx >= q_idx - 7))
VARIANTS = (
    full(), causal(), sliding_window(), causal() & sliding_window(), soft_cap(),
    causal() & soft_cap(), SINGLE, chunked_local(), sigmoid_attention(64), alibi(8),
)  # fmt: skip


def hopper_specs() -> list[KernelSpec]:
    """Kernels with all kinds of maps: by rows, by groups, other values than keys."""
    return [
        dispatch.choose(
            Problem("sm_90a", dtype, qk, vo, 4, causal(), page_size),
            rows=None,
            schedule="hopper_tile",
        )
        for dtype, qk, vo, page_size in (
            ("bf16", 128, 128, 16), ("bf16", 128, 128, 64), ("fp16", 64, 64, 16),
            ("bf16", 192, 128, 16), ("bf16", 80, 80, 16), ("bf16", 96, 96, None),
            ("bf16", 128, 128, None),
        )
    ]  # fmt: skip


def described(spec: KernelSpec, like: Kernel) -> Kernel:
    """An entry with the maps of a kernel that is not compiled here."""
    assert like.attention is not None
    params = dispatch.emit(spec).params
    names = ("head_dim_qk", "head_dim_vo", "group")
    attention = replace(
        like.attention,
        **{name: getattr(spec, name) for name in names},
        tile_q=spec.tile.q,
        tile_kv=spec.tile.kv,
        page_size_multiple=None if spec.loader == "ragged" else 16,
        tensor_maps=recipes_of(params, spec),
    )
    return replace(like, name=spec.name, attention=attention, parameters=parameter_struct(params))


@pytest.fixture(scope="module")
def header(bundle_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a `bundle.h`: the demo's kernels, and maps and variants of others."""
    manifest = load_bundle(bundle_path).manifest
    kernels = list(manifest.kernels)
    like = next(k for k in kernels if k.attention and k.attention.tensor_maps)
    own = {kernel.name for kernel in kernels}
    kernels += [described(spec, like) for spec in hopper_specs() if spec.name not in own]
    choices = manifest.problems[0].choices
    asked = (replace(PROBLEMS[0], variant=variant, page_size=7) for variant in VARIANTS)
    problems = [replace(problem_entry(p, None, []), choices=choices) for p in asked]
    files = {file.path: file for file in manifest.files}
    folder = tmp_path_factory.mktemp("header")
    text = bundle_header(
        kernels, [*manifest.problems, *problems], manifest.workspace, manifest.required_cuda, files
    )
    (folder / "bundle.h").write_text(text)
    (folder / "include").symlink_to(bundle_path / "include")
    return folder


@pytest.fixture(scope="module")
def program(header: Path) -> Path:
    if CC is None:
        pytest.skip("no C compiler (gcc, clang or cc)")
    include = (f"-I{header}", f"-I{header / 'include'}")
    compile_text(CC, "-std=c99", *include, TABLES, "-o", header / "tables", "-lm")
    return header / "tables"


def answers(program: Path, lines: Iterable[str]) -> list[str]:
    text = "\n".join(lines) + "\n"
    result = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return result.stdout.splitlines()


@needs_cxx
@needs_cc
def test_headers_compile_by_themselves(bundle_path: Path, tmp_path: Path) -> None:
    include = (f"-I{bundle_path}", f"-I{bundle_path / 'include'}")
    headers = [bundle_path / "bundle.h", *sorted((bundle_path / "include").rglob("*.h*"))]
    assert len(headers) > 5
    for file in headers:
        source = tmp_path / "one.cpp"
        source.write_text(f'#include "{file}"\n#include "{file}"\nint main() {{ return 0; }}\n')
        compile_text(CXX, "-std=c++17", "-fsyntax-only", *include, source)
        if file.suffix == ".h":
            source.rename(tmp_path / "one.c")
            text = (tmp_path / "one.c").read_text().replace("main()", "main(void)")
            (tmp_path / "one.c").write_text(text)
            compile_text(CC, "-std=c99", "-fsyntax-only", *include, tmp_path / "one.c")


def test_page_division(program: Path) -> None:
    sizes = [*range(1, 300), 1000, 4096, 65537, (1 << 30) + 1, (1 << 31) - 1]
    found = answers(program, (f"divide {size}" for size in sizes))
    assert found == ["{} {}".format(*page_division(size)) for size in sizes]


def test_choices(program: Path) -> None:
    rng = np.random.default_rng(5)
    lines, wanted = [], []
    for _ in range(400):
        problem = PROBLEMS[rng.integers(2)]
        count = int(rng.choice([1, 2, 5, 33, 64]))
        q_len = rng.choice([0, 1, 1, 2, 4, 5, 16, 17, 300], count)
        if rng.random() < 0.5:
            q_len = np.minimum(q_len, int(rng.choice([1, 2, 4, 16])))
        kv_len = rng.integers(0, int(rng.choice([100, 3000, 10_000])), count)
        heads, sms = int(rng.choice([1, 2, 8])), int(rng.choice([108, 132]))
        right = int(rng.choice([0, 5, UNBOUNDED]))
        numbers = " ".join(f"{q} {kv}" for q, kv in zip(q_len, kv_len, strict=True))
        capability = 80 if problem.arch == "sm_80" else 90
        lines.append(f"choose {capability} 16 {sms} {heads} {right} {count} {numbers}")
        rows = int(q_len.max()) * problem.group
        spec = dispatch.choose(
            problem,
            rows=rows,
            tiles_per_sm=dispatch.tiles_per_sm(q_len, rows, heads, sms),
            long=dispatch.is_long(problem, q_len, kv_len, (UNBOUNDED, right)),
        )
        wanted.append(spec.name)
    assert answers(program, lines) == wanted
    assert len(set(wanted)) > 8
    assert answers(program, ["choose 89 16 100 8 0 1 1 1", "choose 90 32 100 8 0 1 1 1"]) == [
        "none", "none",
    ]  # fmt: skip


def test_bands_and_scales(program: Path) -> None:
    rng = np.random.default_rng(6)
    lines, wanted = [], []
    for number, variant in enumerate(VARIANTS):
        for _ in range(5):
            values = variant.values({})
            if "window_left" in values:
                values["window_left"] = int(rng.choice([0, 100, 1 << 30, (1 << 31) - 1]))
            if "logits_soft_cap" in values:
                values["logits_soft_cap"] = float(rng.uniform(1, 50))
            sm_scale = float(rng.uniform(0.05, 1))
            given = " ".join(repr(float(values[s.name])) for s in variant.scalars)
            lines.append(f"derive {2 + number} {sm_scale!r} {len(variant.scalars)} {given}")
            scales = (np.float32(x) for x in scales_of(variant, sm_scale, values))
            wanted.append((*variant.band.resolve(values), *scales))
    for found, expected in zip(answers(program, lines), wanted, strict=True):
        left, right, *scales = found.split()
        assert (int(left), int(right)) == expected[:2]
        assert [np.float32(x) for x in scales] == list(expected[2:])


def numbers_of(spec: TensorMapSpec) -> str:
    numbers = [
        DATA_TYPES[spec.dtype][0], SWIZZLES[spec.swizzle], L2_PROMOTIONS[spec.l2_promotion],
        *spec.dims, *spec.strides_bytes, *spec.box,
    ]  # fmt: skip
    return " ".join(map(str, numbers))


def random_cache(rng: np.random.Generator, rows: int | None, dim: int) -> torch.Tensor:
    """(pages, rows, heads, dim) of NHD or HND memory, K and V together or apart, with gaps."""
    pages, heads = (int(rng.choice([1, 2, 9])) for _ in range(2))
    if rows is None:
        pages, rows = 1, int(rng.choice([1, 7, 300]))
    gap = int(rng.choice([0, 8, 64]))
    if rng.random() < 0.5:
        view = torch.empty(pages, heads, rows + int(rng.integers(3)), dim + gap).transpose(1, 2)
    else:
        view = torch.empty(pages, rows + int(rng.choice([0, 1, 8])), heads, dim + gap)
    return view.to(torch.bfloat16)[:, :rows, :, :dim]


def test_tensor_maps(program: Path) -> None:
    rng = np.random.default_rng(7)
    dtypes = {"bf16": torch.bfloat16, "fp16": torch.float16}
    lines, wanted, by_groups = [], [], set()
    for spec in hopper_specs():
        params, dtype = dispatch.emit(spec).params, dtypes[spec.dtype]
        grouped = "k_page_groups" in params.offsets
        for _ in range(40):
            tokens, heads = int(rng.choice([1, 5, 700])), int(rng.choice([1, 2, 8])) * spec.group
            q = torch.empty(tokens, heads + 1, spec.head_dim_qk, dtype=dtype)[:, :heads]
            shape = (tokens, heads, *q.stride()[:2])
            lines.append(f"map {spec.name} q_map 4 {' '.join(map(str, shape))}")
            wanted.append(numbers_of(q_map(q, spec.group, spec.tile.q // spec.group)))

            rows = None if spec.loader == "ragged" else int(rng.choice([16, 32, 48, 64, 256]))
            k = random_cache(rng, rows, spec.head_dim_qk).to(dtype)
            v = random_cache(rng, rows, spec.head_dim_vo).to(dtype)
            box_rows = spec.tile.kv if rows is None else math.gcd(rows, spec.tile.kv)
            if grouped and not (page_groups(k) and page_groups(v)):
                box_rows = SWIZZLE_ROWS
            make = grouped_kv_map if grouped else kv_map
            shapes = []
            for x in (k, v):
                pages, of_page, kv_heads, _ = x.shape
                strides = x.stride()
                shapes += [pages, of_page, kv_heads, strides[0], strides[1], strides[2]]
            for field, x in (("k_map", k), ("v_map", v)):
                lines.append(f"map {spec.name} {field} 12 {' '.join(map(str, shapes))}")
                wanted.append(numbers_of(make(x, box_rows)))
            by_groups.add((grouped, bool(page_groups(k)), bool(page_groups(v))))
    assert len(by_groups) > 4
    assert answers(program, lines) == wanted


def test_recipes_in_python_are_those_in_c() -> None:
    spec = hopper_specs()[0]
    recipes = recipes_of(dispatch.emit(spec).params, spec)
    k = torch.empty(9, 16, 8, 128, dtype=torch.bfloat16)
    values = {
        "pages": 9, "rows": 16, "heads": 8,
        "page_stride": k.stride(0), "row_stride": k.stride(1), "head_stride": k.stride(2),
        "page_groups": page_groups(k), "groups": 8 * page_groups(k) + 2, "box_rows": 16,
    }  # fmt: skip
    found = next(r for r in recipes if r.field == "k_map" and r.page_groups is not False)
    assert resolve(found, values) == grouped_kv_map(k, 16)
