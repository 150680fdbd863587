"""The device planner, run on the host as a block of threads: the bits of the host planner."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cute_attn.abi import UNBOUNDED, PlanLayout
from cute_attn.codegen.kernels import (
    emit_plan_decode,
    plan_decode_divisors,
    plan_decode_params,
)
from cute_attn.codegen.kernels.plan_decode import MAX_BLOCKS, planner_threads
from cute_attn.codegen.spec import UnsupportedSpecError
from cute_attn.runtime import CompileRequest, compile_source
from cute_attn.scheduler import (
    BUILT_IN,
    Constants,
    CostModel,
    DecodeCosts,
    Geometry,
    Gpu,
    Plan,
    RequestBatch,
    plan_batch,
    planner,
)
from tests.codegen.host_block import COMPILER, compile_kernel

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")

THREADS, MAX_REQUESTS = 64, 256
PLAN_SIZE = PlanLayout(THREADS, MAX_REQUESTS).size
POINTERS = ("kv_indptr", "kv_last_page_len", "seq_lens")

# Reads parameter structs, each with its three arrays; prints plan and status in binary.
MAIN = """
#include <cstdio>
int main(int, char** arguments) {
  std::FILE* file = std::fopen(arguments[1], "rb");
  std::FILE* out = std::fopen(arguments[2], "wb");
  Params params;
  while (std::fread(&params, sizeof(params), 1, file) == 1) {
    std::vector<int> arrays[3];
    for (auto& array : arrays) {
      int size;
      if (std::fread(&size, 4, 1, file) != 1) return 1;
      array.resize(size);
      if (std::fread(array.data(), 4, size, file) != static_cast<size_t>(size)) return 1;
    }
    alignas(16) static int plan[PLAN_SIZE];
    std::fill(plan, plan + PLAN_SIZE, -7);
    int status[4] = {};
    params.kv_indptr = arrays[0].empty() ? nullptr : arrays[0].data();
    params.kv_last_page_len = arrays[1].empty() ? nullptr : arrays[1].data();
    params.seq_lens = arrays[2].empty() ? nullptr : arrays[2].data();
    params.plan = plan;
    params.status = status;
    run_block(params);
    std::fwrite(plan, 4, PLAN_SIZE, out);
    std::fwrite(status, 4, 4, out);
  }
}
""".replace("PLAN_SIZE", str(PLAN_SIZE))


@dataclass
class Case:
    """A step: lengths as the kernel reads them, and as the host planner does."""

    geometry: Geometry
    cost: CostModel
    num_blocks: int
    q_len: int
    kv_start: list[int]
    kv_len: list[int]
    capacity: int
    page_size: int = 0
    table_stride: int = 0
    arrays: dict[str, list[int]] = field(default_factory=dict)

    def expected(self) -> Plan:
        n = len(self.kv_len)
        q_start = self.q_len * self.geometry.callers_request(np.arange(n))
        q_len = np.full(n, self.q_len)
        requests = RequestBatch(q_start, q_len, np.array(self.kv_start), np.array(self.kv_len))
        return plan_batch(requests, self.geometry, self.num_blocks, cost=self.cost)

    def packed(self) -> bytes:
        costs = DecodeCosts.of(self.geometry, self.cost, self.q_len)
        heads = self.geometry.heads_in_ids
        params = plan_decode_params(per_head=heads > 0).structure()
        sizes = {n: x for n, x in vars(self.geometry).items() if heads or n != "heads_in_ids"}
        divided = (self.geometry.tile_kv, self.num_blocks, costs.block_cost)
        values = {
            **plan_decode_divisors(*divided),
            **vars(costs),
            **sizes,
            "num_requests": len(self.kv_len),
            "q_len": self.q_len,
            "page_size": self.page_size,
            "table_stride": self.table_stride,
            "capacity": self.capacity,
            "num_blocks": self.num_blocks,
        }
        for name, value in values.items():
            getattr(params, name)
            setattr(params, name, value)
        arrays = (np.array(self.arrays.get(name, []), np.int32) for name in POINTERS)
        return bytes(params) + b"".join(np.int32(x.size).tobytes() + x.tobytes() for x in arrays)


Runner = Callable[[list[Case]], list[tuple[np.ndarray, list[int]]]]


@pytest.fixture(scope="module", params=[32, 0], ids=lambda n: f"{n} writers")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Runner:
    """Plan buffer and status of each case."""
    return runner(tmp_path_factory.mktemp("planner"), request.param)


def runner(folder: Path, writers: int, *, per_head: bool = False) -> Runner:
    kernel = emit_plan_decode(  # as on sm_90, but for the wait for the launch before it
        "sm_80", threads=THREADS, writers=writers, max_requests=MAX_REQUESTS, per_head=per_head
    )
    program = compile_kernel(kernel, MAIN, folder)

    def call(cases: list[Case]) -> list[tuple[np.ndarray, list[int]]]:
        (folder / "cases").write_bytes(b"".join(case.packed() for case in cases))
        command: list[str | Path] = [program, folder / "cases", folder / "plans"]
        subprocess.run(command, check=True, timeout=300)
        found = np.fromfile(folder / "plans", np.int32).reshape(len(cases), PLAN_SIZE + 4)
        return [(row[:PLAN_SIZE], row[PLAN_SIZE:].tolist()) for row in found]

    return call


def lengths(rng: np.random.Generator, count: int) -> np.ndarray:
    """Constant, uniform, skewed, in a few classes, enormous; empty ones among them."""
    longest = int(rng.choice([1, 70, 300, 5000, 40000, 1 << 20]))
    kind = rng.integers(5)
    if kind == 0:
        kv = np.full(count, longest)
    elif kind == 1:
        kv = rng.integers(1, longest + 1, count)
    elif kind == 2:
        kv = np.minimum(rng.zipf(1.3, count), longest)
    elif kind == 3:
        kv = rng.choice([0, 1, longest // 2, longest], count)
    else:
        kv = rng.integers(0, longest + 1, count) * (rng.random(count) < 0.7)
    return kv.astype(np.int64)


def few_tiles(rng: np.random.Generator) -> Case:
    """So few tiles that each may be cut in even pieces."""
    heads = int(rng.choice([1, 2, 4]))
    geometry = Geometry(8, int(rng.choice([16, 64])), group=4, num_kv_heads=heads, window_right=0)
    cost = CostModel.for_kernel(blocks_per_sm=int(rng.integers(1, 4)))
    num_blocks = int(rng.choice([16, 40, 63]))
    count = int(rng.integers(1, num_blocks // (2 * heads) + 2))
    longest = int(rng.choice([500, 5000, 1 << 17, 1 << 24]))
    kv_len = rng.integers(0, longest, count) if rng.random() < 0.7 else np.full(count, longest)
    case = Case(geometry, cost, num_blocks, 1, list(range(count)), kv_len.tolist(), 1 << 25, 1, 1)
    case.arrays = {"seq_lens": kv_len.tolist()}
    return case


def random_case(rng: np.random.Generator) -> Case:
    if rng.random() < 0.25:
        return few_tiles(rng)
    group, q_len = int(rng.choice([1, 2, 4, 7, 8])), int(rng.choice([1, 1, 1, 2, 4]))
    geometry = Geometry(
        tile_q=int(rng.choice([16, 64])) if group * q_len <= 16 else 64,
        tile_kv=int(rng.choice([16, 64, 80, 128])),
        group=group,
        num_kv_heads=int(rng.choice([1, 2, 8, 32, 127])),
        window_left=int(rng.choice([UNBOUNDED, UNBOUNDED, 0, 100, 4095])),
        window_right=int(rng.choice([UNBOUNDED, 0])),
    )
    cost = CostModel(
        tile_ns=int(rng.choice([1, 50, 1200, 6000])),
        masked_ns=int(rng.choice([0, 300])),
        merge_ns=int(rng.choice([0, 1500])),
        partial_row_ps=int(rng.choice([0, 14700, 10**6])),
    )
    if rng.random() < 0.5:
        cost = CostModel.for_kernel(blocks_per_sm=int(rng.integers(1, 4)))
    count = int(rng.choice([1, 2, 3, 16, 33, 63, 64, 65, 130, 256]))
    num_blocks = int(rng.choice([1, 2, 7, 32, 63]))
    kv_len = lengths(rng, count)
    kind = rng.integers(3)
    if kind == 0:
        indptr = np.concatenate(([0], np.cumsum(kv_len)))
        case = Case(geometry, cost, num_blocks, q_len, indptr[:-1].tolist(), kv_len.tolist(), 0)
        case.capacity = int(indptr[-1])
        case.arrays = {"kv_indptr": indptr.tolist()}
        return case
    page_size = int(rng.choice([1, 3, 16, 64]))
    pages = -(-kv_len // page_size)
    if kind == 1:
        indptr = np.concatenate(([0], np.cumsum(pages)))
        case = Case(geometry, cost, num_blocks, q_len, indptr[:-1].tolist(), kv_len.tolist(), 0)
        last = np.where(pages > 0, kv_len - (pages - 1) * page_size, rng.integers(0, 2))
        case.capacity, case.page_size = int(indptr[-1]), page_size
        case.arrays = {"kv_indptr": indptr.tolist(), "kv_last_page_len": last.tolist()}
        return case
    stride = int(pages.max()) + 3
    starts = (np.arange(count) * stride).tolist()
    case = Case(geometry, cost, num_blocks, q_len, starts, kv_len.tolist(), stride * page_size)
    case.table_stride, case.page_size = stride, page_size
    case.arrays = {"seq_lens": kv_len.tolist()}
    return case


def assert_plan(got: np.ndarray, want: Plan) -> None:
    size = want.buffer.size
    wrong = np.flatnonzero(got[:size] != want.buffer)
    assert wrong.size == 0, (wrong[:10], got[wrong[:10]], want.buffer[wrong[:10]])
    assert (got[size:] == -7).all(), "written past the plan"


@needs_compiler
def test_plans_have_the_bits_of_the_host_planner(
    run: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    cases = [random_case(rng) for _ in range(80)]
    plans = [case.expected() for case in cases]
    with monkeypatch.context() as patch:
        patch.setattr(planner, "cut_evenly", lambda *arguments: None)
        others = [case.expected().buffer for case in cases]
    changed = [(x.buffer != y).any() for x, y in zip(plans, others, strict=True)]
    assert sum(changed) >= 5, "plans of even pieces"
    splits = [plan.num_split_tiles for plan in plans]
    assert sum(n > 0 for n in splits) >= 10 and sum(n == 0 for n in splits) >= 10
    assert sum(plan.num_slots > 2 * plan.num_split_tiles > 0 for plan in plans) >= 3
    for (got, status), plan in zip(run(cases), plans, strict=True):
        assert_plan(got, plan)
        assert status == [0, 0, 0, 0]


@needs_compiler
def test_lists_of_each_kv_head(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    cases = []
    for case in [random_case(rng) for _ in range(40)]:
        heads = int(rng.choice([1, 2, 3, 8]))
        count = max(len(case.kv_len) // heads, 1) * heads
        if len(case.kv_len) % heads or "seq_lens" not in case.arrays:
            starts, kv_len = (3 * np.arange(count)).tolist(), lengths(rng, count).tolist()
            case = replace(case, kv_start=starts, kv_len=kv_len, capacity=1 << 25, table_stride=3)
            case.arrays = {"seq_lens": kv_len}
        geometry = replace(case.geometry, num_kv_heads=1, heads_in_ids=heads)
        cases.append(replace(case, geometry=geometry))
    found = runner(tmp_path, 32, per_head=True)(cases)
    plans = [case.expected() for case in cases]
    assert sum(plan.num_split_tiles > 0 for plan in plans) >= 5
    for (got, status), plan in zip(found, plans, strict=True):
        assert status == [0, 0, 0, 0]
        assert_plan(got, plan)


def any_constants(rng: np.random.Generator) -> Constants:
    """Of some GPU, as a calibration may find them."""
    sms, rate = int(rng.integers(20, 200)), float(rng.uniform(200, 9000))
    gpu = Gpu("any", sms, float(rng.uniform(50, 2000)), rate, float(rng.uniform(1, 9)) * rate / sms)
    rows = {
        dim: replace(times, item_us=float(rng.uniform(0.1, 20)))
        for dim, times in BUILT_IN.times["ampere_decode"].items()
    }
    return Constants(gpu, {**BUILT_IN.times, "ampere_decode": rows})


@needs_compiler
def test_whatever_constants_a_calibration_finds(run: Runner) -> None:
    rng = np.random.default_rng(5)
    cases = []
    for _ in range(40):
        cost = CostModel.for_kernel(
            blocks_per_sm=int(rng.integers(1, 4)), constants=any_constants(rng)
        )
        cases.append(replace(random_case(rng), cost=cost))
    for case, (plan, status) in zip(cases, run(cases), strict=True):
        assert status == [0, 0, 0, 0]
        assert_plan(plan, case.expected())
    built_in = [replace(case, cost=CostModel.for_kernel()).expected() for case in cases]
    pairs = zip(cases, built_in, strict=True)
    changed = sum((case.expected().buffer != other.buffer).any() for case, other in pairs)
    assert changed >= 5, "constants that matter"


def paged_case(num_pages: list[int], last: list[int], *, capacity: int = 100) -> Case:
    geometry = Geometry(16, 64, group=4, num_kv_heads=2, window_right=0)
    indptr = [0, *np.cumsum(num_pages).tolist()]
    case = Case(geometry, CostModel(), 7, 1, indptr[:-1], [0] * len(last), capacity, 16)
    case.arrays = {"kv_indptr": indptr, "kv_last_page_len": last}
    return case


def table_case(seq_lens: list[int], capacity: int, tile_kv: int = 64) -> Case:
    geometry = Geometry(16, tile_kv, group=4, num_kv_heads=2, window_right=0)
    case = Case(geometry, CostModel(), 7, 1, [], seq_lens, capacity, 1, 1)
    case.arrays = {"seq_lens": seq_lens}
    return case


def ragged_case(indptr: list[int], capacity: int) -> Case:
    case = table_case([0] * (len(indptr) - 1), capacity)
    case.arrays = {"kv_indptr": indptr}
    return case


FAULTS: dict[str, tuple[Case, list[int]]] = {
    "falls": (ragged_case([0, 5, 3, 9], 9), [1, 1, 3]),
    "negative": (ragged_case([0, -5, 3], 9), [1, 0, -5]),
    "past the rows": (ragged_case([0, 5, 9], 8), [2, 1, 9]),
    "past the pages": (paged_case([1] * 101, [1] * 101), [2, 100, 101]),
    "last page empty": (paged_case([1, 2, 0, 1], [1, 0, 0, 3]), [3, 1, 0]),
    "last page long": (paged_case([1] * 80, [16] * 70 + [17] * 10), [3, 70, 17]),
    "too many pages": (paged_case([1 << 27], [1], capacity=1 << 30), [5, 0, 1 << 27]),
    "past the table": (table_case([3, 80, 81], 80), [4, 2, 81]),
    "far past the table": (table_case([3] * 199 + [2**31 - 1], 80, 16), [4, 199, 2**31 - 1]),
    "negative length": (table_case([3, -1], 80), [4, 1, -1]),
    "too many blocks": (table_case([1 << 29] * 200, UNBOUNDED - 1, 16), [6, 0, 1 << 25]),
}


@needs_compiler
def test_wrong_lengths_plan_nothing(run: Runner) -> None:
    """An empty plan, and a note of the first fault."""
    results = run([case for case, _ in FAULTS.values()])
    for (got, status), (name, (case, fault)) in zip(results, FAULTS.items(), strict=True):
        none = np.zeros(0, np.int64)
        empty = RequestBatch(none, none, none, none)
        assert status[:3] == fault, name
        assert_plan(got, plan_batch(empty, case.geometry, case.num_blocks, cost=case.cost))
    right = paged_case([1, 0, 2], [16, 0, 3])
    right.kv_len = [16, 0, 19]
    ((got, status),) = run([right])
    assert status[0] == 0
    assert_plan(got, right.expected())


def test_costs_need_one_query_tile() -> None:
    geometry = Geometry(16, 64, group=4, num_kv_heads=2)
    assert DecodeCosts.of(geometry, CostModel(partial_row_ps=1000), 4).partial_cost == 16
    for q_len in (0, 5):
        with pytest.raises(ValueError, match=f"q_len is {q_len}: .* a tile has 16"):
            DecodeCosts.of(geometry, CostModel(), q_len)


@pytest.mark.parametrize(
    ("arch", "threads", "smem_kb"), [("sm_80", 1024, 163), ("sm_86", 512, 99), ("sm_90", 512, 227)]
)
def test_compiles_without_spills_or_warnings(arch: str, threads: int, smem_kb: int) -> None:
    kernel = emit_plan_decode(arch, threads=threads)
    request = CompileRequest(kernel.text, kernel.name, kernel.arch, kernel.include_dirs)
    compiled = compile_source(request)
    assert compiled.lint() == []
    assert compiled.resources.warnings == ()
    assert kernel.threads == 1024 and kernel.smem_bytes <= smem_kb << 10


def test_every_plan_has_a_thread_per_cut() -> None:
    for num_blocks in (1, 511, 512, MAX_BLOCKS):
        assert planner_threads(num_blocks) > num_blocks


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"arch": "sm_75"}, UnsupportedSpecError, "arch is 'sm_75'"),
        ({"threads": 96}, ValueError, "threads is 96"),
        ({"threads": 1024, "writers": 32}, ValueError, "writers is 32; a multiple of 32 up to 0"),
        ({"max_requests": 1000}, ValueError, "max_requests is 1000"),
    ],
)
def test_refuses(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        emit_plan_decode(**{"arch": "sm_90", **options})


def test_it_waits_for_the_launch_before_it() -> None:
    """Before a length is read, or the plan that the last step may still read is written."""
    kernel = emit_plan_decode("sm_90")
    body = kernel.text[kernel.text.index(kernel.name + "(") :]
    assert kernel.dependent_launch
    assert body.index("wait_for_predecessor()") < body.index(".run()")
    earlier = emit_plan_decode("sm_80")
    assert not earlier.dependent_launch and "wait_for" not in earlier.text
