"""The executor against the oracle, over formats, layouts, variants and splits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import oracle
import pytest
import torch

from cute_attn.formats import BlockSparseKV, BlockTableKV, KVFormat, PagedKV, RaggedKV
from cute_attn.reference import execute
from cute_attn.scheduler import CostModel, Geometry, Plan, RequestBatch, plan_batch
from cute_attn.variants import (
    Variant,
    attention_sinks,
    causal,
    full,
    sigmoid_attention,
    sliding_window,
    soft_cap,
)

PAIRS = [(1, 97), (0, 17), (17, 129), (5, 0), (1, 0), (40, 16), (129, 300), (2, 1024), (3, 1)]
WINDOW, CAP = 33, 5.0
SINK = np.array([-60, 60, 0, 1, 2, -3], np.float32)


def gate(out: Any, b: Any, h: Any, q_idx: Any, d: Any) -> Any:
    return out * (h + 1) + q_idx * 0.01 * d


SPLIT_FREELY = CostModel(tile_ns=1, partial_row_ps=0, merge_ns=0, merge_row_ps=0)
VARIANTS: dict[str, tuple[Variant, dict[str, Any], dict[str, Any]]] = {
    # name: variant, its scalars, options of the oracle
    "full": (full(), {}, {}),
    "causal": (causal(), {}, {"mask": oracle.mask_of("causal")}),
    "window": (
        causal() & sliding_window(),
        {"window_left": WINDOW},
        {"mask": oracle.mask_of("causal_window", WINDOW)},
    ),
    "window_both_sides": (
        sliding_window(),
        {"window_left": WINDOW},
        {"mask": oracle.mask_of("window", WINDOW)},
    ),
    "soft_cap": (
        soft_cap() & causal(),
        {"logits_soft_cap": CAP},
        {"mask": oracle.mask_of("causal"), "soft_cap": CAP},
    ),
    "sinks": (
        causal() & attention_sinks(),
        {},
        {"mask": oracle.mask_of("causal"), "sinks": SINK},
    ),
    "sigmoid": (
        causal() & sigmoid_attention(64),
        {"sigmoid_bias": -2.0},
        {"mask": oracle.mask_of("causal"), "weight": lambda s: 1 / (1 + np.exp(2.0 - s))},
    ),
    "gate": (
        sliding_window() & Variant("gate", output=gate),
        {"window_left": WINDOW},
        {
            "mask": oracle.mask_of("window", WINDOW),
            "output": lambda out, h, i: out * (h + 1) + i * 0.01 * np.arange(out.shape[1]),
        },
    ),
}


TENSORS = {"sinks": {"sink": SINK}}


@dataclass
class Case:
    """Inputs in one format, and the keys and values of each request."""

    kv_format: KVFormat
    k: Any
    v: Any
    layout: str
    keys: list[Any]
    values: list[Any]


def random_case(name: str, kv_len: Any, heads: int, dims: tuple[int, int], seed: int) -> Case:
    """KV of the lengths `kv_len` in the format `name`; what is not in use is NaN."""
    rng = np.random.default_rng(seed)
    keys = [rng.standard_normal((n, heads, dims[0])) for n in kv_len]
    values = [rng.standard_normal((n, heads, dims[1])) for n in kv_len]
    if name == "ragged":
        k, v = np.concatenate(keys), np.concatenate(values)
        return Case(RaggedKV(np.r_[0, np.cumsum(kv_len)]), k, v, "NHD", keys, values)
    page_size = {"paged_1": 1, "paged_3": 3, "block_table": 16}.get(name, 8)
    pages = -(-kv_len // page_size)
    indptr = np.r_[0, np.cumsum(pages)]
    numbers = rng.permutation(int(indptr[-1]) + 3)
    k, v = (np.full((numbers.size, page_size, heads, dim), np.nan) for dim in dims)
    table = np.full((kv_len.size, int(pages.max()) + 2), -1)
    for i, n in enumerate(kv_len):
        own = numbers[indptr[i] : indptr[i + 1]]
        table[i, : own.size] = own
        for cache, rows in ((k, keys[i]), (v, values[i])):
            for at in range(n):
                cache[own[at // page_size], at % page_size] = rows[at]
    paged = PagedKV(indptr, numbers, kv_len - np.maximum(pages - 1, 0) * page_size, page_size)
    if name == "block_table":
        return Case(BlockTableKV(table, kv_len, page_size), k, v, "NHD", keys, values)
    if name == "hnd":
        k, v = (np.ascontiguousarray(x.swapaxes(1, 2)) for x in (k, v))
        return Case(paged, k, v, "HND", keys, values)
    if name == "one_tensor":
        assert dims[0] == dims[1]
        return Case(paged, np.stack([k, v], axis=1), None, "NHD", keys, values)
    if name == "strided":
        wide = [np.full((*x.shape[:-1], 2 * x.shape[-1] + i), np.nan) for i, x in enumerate((k, v))]
        for space, x in zip(wide, (k, v), strict=True):
            space[..., : x.shape[-1]] = x
        k, v = (space[..., : x.shape[-1]] for space, x in zip(wide, (k, v), strict=True))
    return Case(paged, k, v, "NHD", keys, values)


def make_plan(
    case: Case, q_len: Any, geometry: Geometry, num_blocks: int, min_piece: int = 1
) -> Plan:
    requests = RequestBatch(
        np.cumsum(q_len) - q_len, q_len, case.kv_format.kv_start, case.kv_format.kv_len
    )
    return plan_batch(requests, geometry, num_blocks, min_piece=min_piece, cost=SPLIT_FREELY)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    "form",
    ["ragged", "paged_1", "paged_3", "paged_8", "hnd", "one_tensor", "strided", "block_table"],
)
def test_against_the_oracle(form: str, variant: str) -> None:
    program, scalars, options = VARIANTS[variant]
    q_len, kv_len = np.array(PAIRS).T
    heads, group = 2, 3
    dims = (16, 16) if form == "one_tensor" else (16, 8)
    case = random_case(form, kv_len, heads, dims, seed=len(form) + len(variant))
    q = np.random.default_rng(5).standard_normal((int(q_len.sum()), heads * group, dims[0]))
    band = program.band.resolve(program.values(scalars))
    plan = make_plan(case, q_len, Geometry(64, 16, group, heads, *band), num_blocks=60)
    assert plan.num_split_tiles > 0
    arguments = (plan, q, case.k, case.v, case.kv_format, program)
    expected = oracle.attend_batch(q, np.r_[0, np.cumsum(q_len)], case.keys, case.values, **options)
    for dtype, error in ((np.float64, 1e-13), (np.float32, 2e-6)):
        out, lse = execute(
            *arguments,
            scalars=scalars,
            tensors=TENSORS.get(variant),
            layout=case.layout,
            dtype=dtype,
        )
        assert out.dtype == lse.dtype == dtype
        assert oracle.relative_error(out, expected[0]) < error
        if not program.softmax:
            assert np.isnan(lse).all()
            continue
        assert oracle.lse_error(lse, expected[1]) < 10 * error


@pytest.mark.parametrize("num_blocks", [1, 2, 7, 132])
@pytest.mark.parametrize("group", [1, 2, 4, 5, 7, 8, 16])
def test_groups_and_grids(group: int, num_blocks: int) -> None:
    q_len, kv_len = np.array([1, 3, 17, 130]), np.array([700, 5, 130, 130])
    case = random_case("paged_3", kv_len, 1, (8, 8), seed=group)
    q = np.random.default_rng(group).standard_normal((151, group, 8))
    plan = make_plan(case, q_len, Geometry(16, 32, group, 1, window_right=0), num_blocks)
    out, lse = execute(plan, q, case.k, case.v, case.kv_format, causal(), dtype=np.float64)
    expected = oracle.attend_batch(
        q, [0, 1, 4, 21, 151], case.keys, case.values, mask=oracle.mask_of("causal")
    )
    assert oracle.relative_error(out, expected[0]) < 1e-13
    assert oracle.lse_error(lse, expected[1]) < 1e-12


def test_rows_without_keys() -> None:
    """More queries than keys, and no keys at all: 0 and -inf, whatever the split."""
    q_len, kv_len = np.array([300, 7, 1]), np.array([200, 0, 0])
    case = random_case("paged_8", kv_len, 2, (8, 8), seed=1)
    q = np.random.default_rng(1).standard_normal((308, 2, 8))
    plan = make_plan(case, q_len, Geometry(64, 16, 1, 2, window_right=0), 33)
    out, lse = execute(plan, q, case.k, case.v, case.kv_format, causal())
    assert (out[:100] == 0).all() and np.isneginf(lse[:100]).all()
    assert (out[300:] == 0).all() and np.isneginf(lse[300:]).all()
    assert np.isfinite(lse[100:300]).all()


def test_a_split_that_is_empty_for_some_rows() -> None:
    """Pieces in which a row sees nothing weigh nothing (no -inf minus -inf)."""
    case = random_case("ragged", np.array([256]), 1, (8, 8), seed=2)
    q = np.random.default_rng(2).standard_normal((64, 1, 8))
    odd = causal() & sliding_window()
    scalars = {"window_left": 5}
    # Planned without the band, so that most pieces of the tile are empty for most rows.
    plan = make_plan(case, np.array([64]), Geometry(64, 16, 1, 1), 16)
    assert plan.num_slots == 16
    out, lse = execute(
        plan, q, case.k, case.v, case.kv_format, odd, scalars=scalars, dtype=np.float64
    )
    expected = oracle.attend(
        q, case.keys[0], case.values[0], mask=oracle.mask_of("causal_window", 5)
    )
    assert oracle.relative_error(out, expected[0]) < 1e-13
    assert oracle.lse_error(lse, expected[1]) < 1e-12


def test_pages_outside_the_window_are_not_needed() -> None:
    """An evicted page may hold NaN, even where it shares a KV block with a visible one."""
    case = random_case("paged_8", np.array([200]), 1, (8, 8), seed=3)
    window = 20  # the query at 199 sees keys from 179 on, in page 22
    for page in case.kv_format.pages_of(0)[:22]:
        case.k[page] = case.v[page] = np.nan
    q = np.random.default_rng(3).standard_normal((1, 1, 8))
    plan = make_plan(case, np.array([1]), Geometry(16, 64, 1, 1, window, 0), 1)
    variant, scalars = causal() & sliding_window(), {"window_left": window}
    out, lse = execute(plan, q, case.k, case.v, case.kv_format, variant, scalars=scalars)
    expected = oracle.attend(q, case.keys[0][179:], case.values[0][179:])
    assert oracle.relative_error(out, expected[0]) < 1e-6
    assert oracle.lse_error(lse, expected[1]) < 1e-5


def test_block_sparse() -> None:
    rng = np.random.default_rng(4)
    rows, cols, (r, c), heads, group = 70, 96, (16, 8), 2, 2
    pattern = rng.random((-(-rows // r), cols // c)) < 0.4
    pattern[2] = False
    indptr = np.r_[0, np.cumsum(pattern.sum(axis=1))]
    sparse = BlockSparseKV(indptr, np.nonzero(pattern)[1], (r, c), rows, cols)
    q = rng.standard_normal((rows, heads * group, 8))
    k, v = (rng.standard_normal((cols, heads, 8)) for _ in range(2))
    q_len = np.diff(sparse.qo_indptr)
    requests = RequestBatch(sparse.qo_indptr[:-1], q_len, sparse.kv_start, sparse.kv_len)
    plan = plan_batch(requests, Geometry(16, 16, group, heads), 24, min_piece=1, cost=SPLIT_FREELY)
    assert plan.num_split_tiles > 0
    out, lse = execute(plan, q, k, v, sparse, full(), dtype=np.float64)
    expected = oracle.attend(q, k, v, q_pos=0, mask=lambda i, j: pattern[i // r, j // c])
    assert oracle.relative_error(out, expected[0]) < 1e-13
    assert oracle.lse_error(lse, expected[1]) < 1e-12


def test_true_positions() -> None:
    """A level of a composable format: positions come from the plan, not from indices."""
    case = random_case("ragged", np.array([50, 40]), 1, (8, 8), seed=6)
    q = np.random.default_rng(6).standard_normal((12, 1, 8))
    q_pos, kv_pos = [60, 90], [30, 70]
    requests = RequestBatch([0, 5], [5, 7], [0, 50], [50, 40], q_pos=q_pos, kv_pos=kv_pos)
    plan = plan_batch(
        requests, Geometry(16, 16, 1, 1, window_right=0), 4, min_piece=1, cost=SPLIT_FREELY
    )
    out, lse = execute(plan, q, case.k, case.v, case.kv_format, causal(), dtype=np.float64)
    expected = oracle.attend_batch(
        q, [0, 5, 12], case.keys, case.values,
        mask=oracle.mask_of("causal"), q_pos=q_pos, kv_pos=kv_pos,
    )  # fmt: skip
    assert oracle.relative_error(out, expected[0]) < 1e-13
    assert oracle.lse_error(lse, expected[1]) < 1e-12


def test_same_inputs_same_bits() -> None:
    case = random_case("paged_8", np.array([900, 300]), 2, (16, 16), seed=7)
    q = np.random.default_rng(7).standard_normal((2, 8, 16)).astype(np.float32)
    plan = make_plan(case, np.array([1, 1]), Geometry(16, 64, 4, 2), 20)
    first, second = (execute(plan, q, case.k, case.v, case.kv_format, full()) for _ in range(2))
    assert np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])


def test_tensors_and_scale() -> None:
    torch.manual_seed(0)
    q = torch.randn(4, 4, 16, dtype=torch.bfloat16)
    cache = torch.randn(5, 2, 8, 2, 16, dtype=torch.bfloat16)
    paged = PagedKV([0, 4], [4, 0, 1, 3], [3], 8)
    requests = RequestBatch([0], [4], paged.kv_start, paged.kv_len)
    plan = plan_batch(requests, Geometry(16, 16, 2, 2, window_right=0), 3)
    out, lse = execute(plan, q, cache, None, paged, causal(), sm_scale=0.5)
    keys, values = oracle.gather_paged(cache[:, 0], cache[:, 1], [4, 0, 1, 3], 27)
    expected = oracle.attend(q, keys, values, sm_scale=0.5, mask=oracle.mask_of("causal"))
    assert oracle.relative_error(out, expected[0]) < 1e-6
    assert oracle.lse_error(lse, expected[1]) < 1e-5


def test_hooks_see_heads_requests_and_positions() -> None:
    def biased(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any, **_: Any) -> Any:
        return score - 0.1 * (h + 1) * abs(q_idx - kv_idx) + b

    alibi = Variant("alibi_like", logits=biased)
    case = random_case("paged_3", np.array([30, 50]), 1, (8, 8), seed=8)
    q = np.random.default_rng(8).standard_normal((7, 2, 8))
    plan = make_plan(case, np.array([3, 4]), Geometry(16, 16, 2, 1), 5)
    out, lse = execute(plan, q, case.k, case.v, case.kv_format, alibi, dtype=np.float64)
    for b, (begin, end) in enumerate(((0, 3), (3, 7))):
        for h in range(2):
            keys, values = case.keys[b][:, 0], case.values[b][:, 0]
            position = len(keys) - (end - begin) + np.arange(end - begin)
            s = q[begin:end, h] @ keys.T / np.sqrt(8)
            s = s - 0.1 * (h + 1) * abs(position[:, None] - np.arange(len(keys))) + b
            p = np.exp(s)
            assert np.allclose(out[begin:end, h], p @ values / p.sum(axis=1, keepdims=True))
            assert np.allclose(lse[begin:end, h], np.log(p.sum(axis=1)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"q": np.zeros((3, 2, 8))}, ValueError, r"q has shape \(3, 2, 8\); it takes .* 4, 8\)"),
        ({"q": np.zeros((2, 4, 8))}, ValueError, "q has 2 rows but the plan reaches row 3"),
        ({"k": np.zeros((9, 1, 8)), "v": np.zeros((9, 1, 8))}, ValueError, "k has 1 heads but 2"),
        ({"kv_format": RaggedKV([0, 4, 9])}, ValueError, "kv_format has 2 requests but 1 were"),
        ({"dtype": np.float16}, TypeError, "dtype is float16"),
        ({"scalars": {"cap": 1}}, ValueError, "has no scalar"),
    ],
)
def test_bad_input(change: dict[str, Any], error: type[Exception], message: str) -> None:
    plan = plan_batch(RequestBatch([0], [3], [0], [9]), Geometry(16, 16, 2, 2), 2)
    arguments: dict[str, Any] = {
        "q": np.zeros((3, 4, 8)),
        "k": np.zeros((9, 2, 8)),
        "v": np.zeros((9, 2, 8)),
        "kv_format": RaggedKV([0, 9]),
        "variant": full(),
    }
    with pytest.raises(error, match=message):
        execute(plan, **(arguments | change))
