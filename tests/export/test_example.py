"""The example of bundles against a driver that writes down what it is asked: the parameters, maps
and plans of its launches are those that Python makes. On a GPU: tests/gpu/test_export.py."""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cute_attn import export_bundle, load_bundle
from cute_attn.abi import UNBOUNDED
from cute_attn.api import dispatch
from cute_attn.api.launches import cost_of
from cute_attn.api.tensor_maps import grouped_kv_map, page_groups, q_map
from cute_attn.codegen.attention_params import page_division
from cute_attn.codegen.spec import KernelSpec
from cute_attn.export import Bundle
from cute_attn.runtime.tensor_map import DATA_TYPES, L2_PROMOTIONS, SWIZZLES, TensorMapSpec
from cute_attn.scheduler import RequestBatch, plan_batch, workspace_size
from tests.export.carry import EXAMPLE, problem_for
from tests.export.compilers import CXX, compile_text, needs_cxx
from tests.export.steps import (
    GROUP,
    HEAD_DIM,
    NUM_KV_HEADS,
    PAGE_SIZE,
    SM_SCALE,
    STEPS,
    Step,
    write_step,
)

pytestmark = needs_cxx
NUM_SMS = 132
PROBLEM = problem_for("sm_90a")
HEADS = NUM_KV_HEADS * GROUP


@dataclass
class Launch:
    """What the driver was told. `memory`: contents of small pieces by address."""

    name: str
    numbers: list[int]
    parameters: bytes
    memory: dict[int, bytes]
    maps: dict[int, list[list[int]]] = field(default_factory=dict)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    path = tmp_path_factory.mktemp("example") / "bundle"
    export_bundle(path, [PROBLEM], schedules=(None, "ampere_tile"))
    return load_bundle(path)


@pytest.fixture(scope="module")
def program(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example beside a libcuda that only writes down."""
    folder = tmp_path_factory.mktemp("program")
    include = (f"-I{bundle.path}", f"-I{bundle.path / 'include'}")
    compile_text(
        CXX, "-std=c++17", "-O1", *include, EXAMPLE / "main.cpp", "-o", folder / "run", "-ldl"
    )
    driver = Path(__file__).parent / "recording_driver.cpp"
    compile_text(CXX, "-std=c++17", "-shared", "-fPIC", driver, "-o", folder / "libcuda.so.1")
    return folder / "run"


@pytest.fixture
def run(program: Path, bundle: Bundle, tmp_path: Path) -> Callable[..., Any]:
    sizes = tmp_path / "sizes"
    kernels = bundle.manifest.kernels
    sizes.write_text("".join(f"{k.name} {k.parameters.bytes}\n" for k in kernels))

    def call(*arguments: object, **settings: str) -> subprocess.CompletedProcess[str]:
        known = {
            "LD_LIBRARY_PATH": str(program.parent),
            "RECORD": str(tmp_path / "record"),
            "PARAMETER_BYTES": str(sizes),
        }
        return subprocess.run(
            [str(program), *map(str, arguments)],
            env={**os.environ, **known, **settings},
            capture_output=True,
            text=True,
            check=False,
        )

    return call


def read_record(path: Path) -> list[Launch]:
    launches: list[Launch] = []
    memory: dict[int, bytes] = {}
    maps: dict[int, list[list[int]]] = {}
    for line in path.read_text().splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "memory":
            address, data = rest.split()
            memory[int(address)] = bytes.fromhex(data)
        elif kind == "map":
            lists = [[int(x) for x in part.split()] for part in rest.split("|")]
            maps[lists[0][0]] = lists
        else:
            name, *numbers, data = rest.split()
            launches.append(
                Launch(name, [int(x) for x in numbers], bytes.fromhex(data), memory, maps)
            )
            memory = {}
    return launches


def spec_of(step: Step) -> KernelSpec:
    """The kernel that a batch takes for a step."""
    q_len, kv_len = np.array(step.q_lens), np.array(step.kv_lens)
    rows = int(q_len.max()) * GROUP
    return dispatch.choose(
        PROBLEM,
        rows=rows,
        tiles_per_sm=dispatch.tiles_per_sm(q_len, rows, NUM_KV_HEADS, NUM_SMS),
        long=dispatch.is_long(PROBLEM, q_len, kv_len, (UNBOUNDED, 0)),
        schedule=step.schedule,
    )


def requests_of(step: Step) -> RequestBatch:
    pages = np.array([-(-n // PAGE_SIZE) for n in step.kv_lens])
    rows = np.cumsum(step.q_lens) - step.q_lens
    return RequestBatch(rows, step.q_lens, np.cumsum(pages) - pages, step.kv_lens)


def map_numbers(spec: TensorMapSpec) -> list[list[int]]:
    """Arguments of the driver, but for the number and the address."""
    return [
        [DATA_TYPES[spec.dtype][0], 0, SWIZZLES[spec.swizzle], L2_PROMOTIONS[spec.l2_promotion], 0],
        list(spec.dims),
        list(spec.strides_bytes),
        list(spec.box),
        [1] * len(spec.dims),
    ]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_launches_are_those_of_a_batch(
    step: Step, run: Callable[..., Any], bundle: Bundle, tmp_path: Path
) -> None:
    folder = write_step(step, tmp_path)
    result = run(bundle.path, folder)
    # Nothing was computed, and the example sees it.
    assert result.returncode == 1, result.stderr
    assert result.stdout.startswith(f"FAIL {folder}")
    assert "nan, lse nan" in result.stdout

    spec = spec_of(step)
    params = dispatch.emit(spec).params
    num_blocks = NUM_SMS * spec.tile.blocks_per_sm
    geometry = dispatch.geometry(spec, NUM_KV_HEADS, (UNBOUNDED, 0))
    plan = plan_batch(requests_of(step), geometry, num_blocks, cost=cost_of(spec))
    launches = read_record(tmp_path / "record")
    attention = launches[0]
    assert len(launches) == 2 * (1 if spec.fuses_merge else 2)  # it runs twice
    assert attention.name == spec.name
    assert attention.numbers == [
        num_blocks, 1, 1, spec.tile.threads, 1, 1, dispatch.emit(spec).smem_bytes,
    ]  # fmt: skip

    block = params.structure.from_buffer_copy(attention.parameters)
    values = {name: getattr(block, name) for name in params.offsets}
    assert attention.memory[values["plan"]][:-1] == plan.buffer.tobytes()
    size = workspace_size(
        num_blocks=num_blocks, max_requests=1, tile_q=spec.tile.q, head_dim_vo=HEAD_DIM
    )
    _, partial_out, partial_lse = size.offsets_of()
    assert values["partial_lse"] - values["partial_out"] == partial_lse - partial_out
    page = PAGE_SIZE * NUM_KV_HEADS * HEAD_DIM
    magic, shift = page_division(PAGE_SIZE)
    wanted = {
        "sm_scale": np.float32(SM_SCALE),
        "scale_log2": np.float32(SM_SCALE * math.log2(math.e)),
        "out_token_stride": HEADS * HEAD_DIM, "out_head_stride": HEAD_DIM,
        "num_kv_heads": NUM_KV_HEADS, "num_pages": step.num_pages, "page_size": PAGE_SIZE,
        "page_magic": magic, "page_shift": shift, "beside": 0,
        "q_token_stride": HEADS * HEAD_DIM, "q_head_stride": HEAD_DIM,
        "k_page_stride": page, "k_token_stride": NUM_KV_HEADS * HEAD_DIM,
        "k_head_stride": HEAD_DIM,
        "v_page_stride": page, "v_token_stride": NUM_KV_HEADS * HEAD_DIM,
        "v_head_stride": HEAD_DIM,
        "k_page_groups": PAGE_SIZE // 8, "v_page_groups": PAGE_SIZE // 8,
        "box_rows": math.gcd(PAGE_SIZE, spec.tile.kv),
    }  # fmt: skip
    for name in wanted.keys() & values.keys():
        assert values[name] == wanted[name], name
    pointers = {f.name for f in params.fields if f.kind == "pointer"}
    assert all(values[name] for name in pointers)
    maps = {f.name for f in params.fields if f.kind == "tensor_map"}
    assert values.keys() == pointers | maps | (wanted.keys() & values.keys())

    q = torch.empty(sum(step.q_lens), HEADS, HEAD_DIM, dtype=torch.bfloat16)
    kv = torch.empty(step.num_pages, PAGE_SIZE, NUM_KV_HEADS, HEAD_DIM, dtype=torch.bfloat16)
    for name in maps:
        (number,) = set(bytes(values[name]))  # the driver fills a map with its number
        (_, *head), *lists = attention.maps[number]
        del head[1]  # the address
        if name == "q_map":
            expected = q_map(q, GROUP, spec.tile.q // GROUP)
        else:
            assert page_groups(kv)
            expected = grouped_kv_map(kv, wanted["box_rows"])
        assert [head, *lists] == map_numbers(expected), name
    assert bool(maps) == (spec.schedule == "hopper_tile")

    if step.name.startswith("mixed"):
        assert plan.num_split_tiles > 0
    if not spec.fuses_merge:
        merge, entry = launches[1], bundle.manifest.by_name[launches[1].name]
        assert merge.numbers == [num_blocks, entry.grid_y, 1, entry.block, 1, 1, 0]
        merge_params = bundle.kernel(merge.name).generated.params
        own = merge_params.structure.from_buffer_copy(merge.parameters)
        for name in merge_params.offsets:
            assert getattr(own, name) == values[name], name


def test_a_gpu_without_code_is_refused_in_words(
    run: Callable[..., Any], bundle: Bundle, tmp_path: Path
) -> None:
    folder = write_step(STEPS[0], tmp_path)
    result = run(bundle.path, folder, CAPABILITY="89")
    assert result.returncode == 1
    assert "no code for compute capability 8.9" in result.stderr
    result = run(bundle.path, folder, DRIVER_VERSION="11080")
    assert result.returncode == 1
    assert "needs a driver for CUDA 13" in result.stderr
