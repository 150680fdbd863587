"""The planner of bundles makes the plans of `plan_batch`, to the bit."""

from __future__ import annotations

import subprocess
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import pytest

from cute_attn.abi import UNBOUNDED, PlanLayout
from cute_attn.api import dispatch
from cute_attn.api.launches import cost_of
from cute_attn.codegen.source import INCLUDE_DIR as KERNEL_HEADERS
from cute_attn.export.manifest import Costs
from cute_attn.export.write import INCLUDE_DIR
from cute_attn.scheduler import (
    CostModel,
    Geometry,
    Plan,
    RequestBatch,
    plan_batch,
    workspace_size,
)
from cute_attn.scheduler.planner import DEFAULT_L2_BUDGET
from cute_attn.workloads import load_steps
from tests.export.compilers import CXX, compile_text, needs_cxx
from tests.export.conftest import PROBLEMS

pytestmark = needs_cxx
SOURCE = Path(__file__).parent / "planner.cpp"


@dataclass(frozen=True)
class Case:
    """One call of the planner."""

    requests: RequestBatch
    geometry: Geometry
    num_blocks: int
    cost: CostModel
    policy: str = "balanced"
    min_piece: int | None = None
    l2_budget: int = DEFAULT_L2_BUDGET

    def plan(self) -> Plan:
        return plan_batch(
            self.requests,
            self.geometry,
            self.num_blocks,
            cost=self.cost,
            policy=self.policy,
            min_piece=self.min_piece,
            l2_budget=self.l2_budget,
        )

    def to_bytes(self) -> bytes:
        n, ids = self.requests.num_requests, self.requests.ids
        costs = Costs(**vars(self.cost))  # in the order of the manifest
        head = [
            self.num_blocks, self.policy == "balanced", self.min_piece or 0, self.l2_budget,
            *astuple(self.geometry)[:6],  # bundles have no tables of each KV head
            *astuple(costs), n,
        ]  # fmt: skip
        rows = np.empty((n, 7), np.int64)
        rows[:, :6] = self.requests.table.T
        rows[:, 6] = np.arange(n) if ids is None else ids
        return np.array(head, np.int64).tobytes() + rows.tobytes()


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("planner") / "planner"
    sanitizer = ("-fsanitize=undefined", "-fsanitize-undefined-trap-on-error")
    compile_text(
        CXX,
        "-std=c++17",
        "-O2",
        *sanitizer,
        f"-I{INCLUDE_DIR}",
        f"-I{KERNEL_HEADERS}",
        SOURCE,
        "-o",
        made,
    )
    return made


def check(program: Path, folder: Path, cases: list[Case]) -> list[Plan]:
    """Compares the plans of some cases; returns Python's."""
    (folder / "steps").write_bytes(b"".join(case.to_bytes() for case in cases))
    command = [str(program), str(folder / "steps"), str(folder / "plans")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    data, at = (folder / "plans").read_bytes(), 0
    plans = []
    for number, case in enumerate(cases):
        plan = case.plan()
        size, *counts = np.frombuffer(data, np.int64, 9, at).tolist()
        costs = np.frombuffer(data, np.int64, case.num_blocks, at + 72)
        at += 72 + costs.nbytes
        buffer = np.frombuffer(data, np.int32, size, at)
        at += buffer.nbytes
        assert np.array_equal(buffer, plan.buffer), (number, case)
        assert np.array_equal(costs, plan.block_costs), (number, case)
        n = case.requests.num_requests
        room = workspace_size(
            num_blocks=case.num_blocks,
            max_requests=max(n, 1),
            tile_q=case.geometry.tile_q,
            head_dim_vo=128,
        )
        assert counts == [
            plan.num_tiles, plan.num_split_tiles, plan.num_slots, plan.merge_cost,
            PlanLayout(case.num_blocks, n).size, *room.offsets_of()[1:], room.total,
        ], (number, case)  # fmt: skip
        plans.append(plan)
    assert at == len(data)
    return plans


def random_requests(rng: np.random.Generator) -> RequestBatch:
    kind = rng.integers(4)
    count = int(rng.choice([0, 1, 2, 5, 17, 64, 300], p=[0.03, 0.2, 0.2, 0.25, 0.2, 0.1, 0.02]))
    if kind == 0:  # decodes
        q_len = np.full(count, rng.choice([1, 1, 2, 4]))
    elif kind == 1:
        q_len = rng.choice([0, 1, 1, 1, 2], count)
    elif kind == 2:  # mixed
        q_len = np.where(rng.random(count) < 0.3, rng.integers(2, 1500, count), 1)
    else:  # prefill
        q_len = rng.integers(0, 3000, count) // rng.choice([1, 10, 100])
    longest = int(rng.choice([1, 64, 300, 5000, 200_000]))
    kv_len = rng.integers(0, longest + 1, count)
    if rng.random() < 0.3 and count:
        kv_len[:] = longest
    if rng.random() < 0.5:
        kv_len = np.maximum(kv_len, q_len)
    batch = RequestBatch.from_lengths(q_len, kv_len)
    if rng.random() < 0.6:
        return batch
    q_pos = batch.q_pos + rng.integers(-100, 100, count)
    kv_pos = rng.integers(0, 50, count)
    ids = rng.permutation(count) + 7
    return RequestBatch(batch.q_start, q_len, batch.kv_start, kv_len, q_pos, kv_pos, ids)


def random_case(rng: np.random.Generator) -> Case:
    geometry = Geometry(
        tile_q=int(rng.choice([8, 16, 64, 128, 192])),
        tile_kv=int(rng.choice([16, 64, 96, 128])),
        group=int(rng.choice([1, 2, 3, 4, 5, 7, 8, 16])),
        num_kv_heads=int(rng.choice([1, 2, 3, 8, 32, 130], p=[0.2, 0.2, 0.2, 0.3, 0.08, 0.02])),
        window_left=int(rng.choice([UNBOUNDED, UNBOUNDED, 0, 40, 511])),
        window_right=int(rng.choice([UNBOUNDED, 0, 0, 9])),
    )
    if rng.random() < 0.6:
        cost = CostModel.for_kernel(
            int(rng.choice([64, 128, 256])),
            128,
            schedule=str(rng.choice(["ampere_decode", "ampere_tile", "hopper_tile"])),
            blocks_per_sm=int(rng.integers(1, 4)),
        )
    else:
        cost = CostModel(
            tile_ns=int(rng.integers(1, 5000)),
            row_key_ps=int(rng.integers(0, 500)),
            key_ps=int(rng.integers(0, 50000)),
            partial_row_ps=int(rng.integers(0, 50000)),
            merge_ns=int(rng.integers(0, 5000)),
            key_bytes=int(rng.choice([256, 512, 1024])),
            masked_ns=int(rng.integers(0, 300)),
            merge_row_ps=int(rng.integers(0, 9000)),
        )
    return Case(
        random_requests(rng),
        geometry,
        int(rng.choice([1, 2, 3, 7, 33, 132, 264, 396])),
        cost,
        policy="whole" if rng.random() < 0.05 else "balanced",
        min_piece=None if rng.random() < 0.8 else int(rng.integers(1, 6)),
        l2_budget=int(rng.choice([0, 1 << 16, DEFAULT_L2_BUDGET])),
    )


def test_random_steps(program: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(2026)
    plans = [
        plan
        for _ in range(20)
        for plan in check(program, tmp_path, [random_case(rng) for _ in range(500)])
    ]
    assert len(plans) == 10_000
    # All ways to hand out tiles occur.
    assert sum(plan.num_split_tiles > 0 for plan in plans) > 1500
    assert sum(plan.num_whole_tiles > 0 for plan in plans) > 1000
    assert sum(0 < plan.num_whole_tiles < plan.num_tiles for plan in plans) > 300
    assert sum(plan.view.get("places") > 0 for plan in plans) > 300
    assert sum(plan.num_tiles == 0 for plan in plans) > 100


def test_real_steps_with_the_kernels_of_a_bundle(program: Path, tmp_path: Path) -> None:
    cases = []
    for step in load_steps():
        for problem in PROBLEMS:
            for spec in dispatch.all_specs(problem):
                geometry = dispatch.geometry(spec, 8, (UNBOUNDED, 0))
                blocks = 132 * spec.tile.blocks_per_sm
                requests = RequestBatch.from_lengths(step.q_lens, step.kv_lens)
                cases.append(Case(requests, geometry, blocks, cost_of(spec)))
    check(program, tmp_path, cases)


def shared_keys(count: int, kv_len: int) -> RequestBatch:
    """Decodes that all read the same keys."""
    return RequestBatch(range(count), [1] * count, [0] * count, [kv_len] * count)


def test_long_steps(program: Path, tmp_path: Path) -> None:
    """Where costs leave 32 bits, and where the line is too long for the short way to share it."""
    decode = Geometry(16, 16, group=1, num_kv_heads=8)
    dear = CostModel(key_ps=(1 << 31) - 1)
    cases = [
        Case(shared_keys(2000, 1 << 20), decode, 132, CostModel()),
        Case(shared_keys(60, (1 << 30) - 1), decode, 132, dear),
        Case(
            RequestBatch.from_lengths([8192] * 64, [131_072] * 64),
            Geometry(128, 128, group=4, num_kv_heads=8, window_right=0),
            132,
            CostModel(),
        ),
    ]
    plans = check(program, tmp_path, cases)
    assert int(plans[1].block_costs.sum()) > 1 << 46
