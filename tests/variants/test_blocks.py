"""What kernels ask about a block: sound, as tight as `classify` on masks that people use, and the
same in C++."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cute_attn.variants import (
    EMPTY,
    FULL,
    PARTIAL,
    Hook,
    Scalar,
    Tensor,
    Variant,
    causal,
    chunked_local,
    full,
    prefix_lm,
    sliding_window,
)
from cute_attn.variants.blocks import BlockTest, block_test
from cute_attn.variants.evaluate import evaluate
from cute_attn.variants.printer import cpp_values
from tests.variants.test_bands import near_masks
from tests.variants.test_programs import COMPILER, PARAMS, floor_functions
from tests.variants.trees import RECTANGLES, SCALARS, TRACED, promise, run, truths

CORNERS = ("b", "h_first", "h_last", "q_first", "q_last", "kv_first", "kv_last")


def variant_of(tree: Any) -> Variant:
    def function(b: Any, h: Any, q_idx: Any, kv_idx: Any, **named: Any) -> Any:
        return run(tree, {"b": b, "h": h, "q_idx": q_idx, "kv_idx": kv_idx, **named}, TRACED)

    return Variant("v", mask=function, params=PARAMS)


def kinds(test: BlockTest | None, corners: dict[str, Any], scalars: dict[str, Any]) -> Any:
    """Classes of blocks whose corners are arrays."""
    shape = np.broadcast_shapes(*(np.shape(corners[name]) for name in CORNERS))
    if test is None:
        return np.full(shape, PARTIAL)
    values = {**corners, **{f"params.{name}": x for name, x in scalars.items()}}
    some, full = (evaluate(x, values) for x in test.visible)
    return np.broadcast_to(np.where(full, FULL, np.where(some, PARTIAL, EMPTY)), shape)


SINKS = Variant("sinks", mask=lambda b, h, q, k, *, n=4, w=20: (k <= q) & ((k < n) | (k > q - w)))
BY_CHUNK = Variant("by_chunk", mask=lambda b, h, q, k, *, c: (k <= q) & (q // c == k // c),
                   params=[Scalar("c", "i32", 32, "", lower=1)])  # fmt: skip
BY_HEAD = Variant("by_head", mask=lambda b, h, q, k: (k <= q) & ((h < 2) | (k > q - 50)))
DILATED = Variant("dilated", mask=lambda b, h, q, k: (k <= q) & ((q - k) // 64 % 2 == 0))
SQUARES = Variant("squares", mask=lambda b, h, q, k: (abs(q // 64 - k // 64) <= 1)
                  & (abs(q % 64 - k % 64) <= 20))  # fmt: skip
KNOWN = [
    (prefix_lm(), {"prefix_length": 100}),
    (chunked_local(), {"chunk_size": 48}),
    (causal() & chunked_local(), {"chunk_size": 100}),
    (causal() & sliding_window(), {"window_left": 70}),
    (SINKS, {"n": 20, "w": 40}),
    (SINKS & chunked_local(), {"n": 20, "w": 40, "chunk_size": 128}),
    (BY_CHUNK, {"c": 40}),
    (BY_HEAD, {}),
    (DILATED, {}),
    (SQUARES, {}),
]


@pytest.mark.parametrize(("variant", "scalars"), KNOWN, ids=lambda x: getattr(x, "name", ""))
@pytest.mark.parametrize("first_query", [0, -37, 200])
def test_as_tight_as_intervals(variant: Variant, scalars: dict[str, Any], first_query: int) -> None:
    q, kv = np.arange(0, 400, 16)[:, None] + first_query, np.arange(0, 400, 24)
    corners = {"b": 0, "h_first": 0, "h_last": 3, "q_first": q, "q_last": q + 15}
    corners |= {"kv_first": kv, "kv_last": kv + 23}
    got = kinds(block_test(variant.mask, variant.scalars), corners, scalars)
    want = variant.classify((q, q + 15), (kv, kv + 23), scalars, b=(0, 0), h=(0, 3))
    assert got.tolist() == want.tolist()
    assert (got == EMPTY).any() and (got != EMPTY).any()


def check(tree: Any, rectangle: tuple[int, int, int, int], scalars: dict[str, Any]) -> None:
    variant = variant_of(tree)
    assert variant.mask is not None
    q, rows, kv, columns = rectangle
    corners = dict(zip(CORNERS, (1, 0, 3, q, q + rows, kv, kv + columns), strict=True))
    kind = kinds(block_test(variant.mask, variant.scalars), corners, scalars)
    visible = variant.mask(
        1,
        np.arange(4)[:, None, None],
        np.arange(q, q + rows + 1)[:, None],
        np.arange(kv, kv + columns + 1),
        **scalars,
    )
    promise(kind, visible)


@given(tree=truths(), rectangle=RECTANGLES)
@settings(max_examples=300, deadline=None)
def test_random_masks(tree: Any, rectangle: tuple[int, int, int, int]) -> None:
    check(tree, rectangle, SCALARS)


@given(tree=near_masks, rectangle=RECTANGLES, size=st.integers(1, 20), shift=st.integers(-20, 20))
@settings(max_examples=300, deadline=None)
def test_random_masks_near_the_diagonal(
    tree: Any, rectangle: tuple[int, int, int, int], size: int, shift: int
) -> None:
    check(tree, rectangle, {**SCALARS, "size": size, "shift": shift})


def test_what_the_band_says_is_not_asked_again() -> None:
    """Where no block is full, and none is empty inside the band."""

    def every_third(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (kv_idx <= q_idx) & ((q_idx - kv_idx) % 3 == 0)

    by_weight = Variant(
        "weight", mask=lambda b, h, q, k, *, w: w[k] > 0.5, params=[Tensor("w", "f32", 1)]
    )
    for variant in (full(), causal() & by_weight, Variant("third", mask=every_third)):
        assert block_test(variant.mask, variant.scalars) is None
    text = causal() & Variant("text", mask=Hook("even", "kv_idx % 2 == 0"))
    assert block_test(text.mask, text.scalars) is None


def test_hooks_in_cpp_and_python_together() -> None:
    """What is written in C++ may hide anything."""
    variant = SINKS & Variant("text", mask=Hook("even", "kv_idx % 2 == 0"))
    test, alone = (block_test(v.mask, v.scalars) for v in (variant, SINKS))
    assert test is not None and alone is not None
    assert test.visible.some is alone.visible.some
    assert test.visible.all.is_constant and test.visible.all.value is False


def test_a_tensor_of_requests_is_read() -> None:
    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, prefix: Any) -> Any:
        return (kv_idx <= q_idx) | (kv_idx < prefix[b])

    variant = Variant("prefixes", mask=mask, params=[Tensor("prefix", "i32", 1)])
    test = block_test(variant.mask, variant.scalars)
    assert test is not None
    assert cpp_values(test.visible._asdict(), test.limits) == [
        "int const t0 = prefix(params, b);",
        "bool const some = (kv_first <= q_last) | (kv_first < t0);",
        "bool const all = (kv_last <= q_first) | (kv_last < t0);",
    ]


def documents(b: Any, h: Any, q: Any, k: Any, *, x: Any) -> Any:
    return (k <= q) & (x[b, q] == x[b, k])


def nested(b: Any, h: Any, q: Any, k: Any, *, x: Any) -> Any:
    """A number of a number."""
    return (x[0, x[b, q]] >= x[0, x[b, k]]) | (k == q)


ON_TENSORS: dict[str, tuple[str, int, Callable[..., Any]]] = {
    "documents": ("i32", 2, documents),
    "padding": ("bool", 2, lambda b, h, q, k, *, x: x[b, k] & (k <= q)),
    "hidden": ("bool", 2, lambda b, h, q, k, *, x: ~x[b, k] | x[b, q]),
    # Of a block around key 150 nothing is known.
    "tree": ("bool", 2, lambda b, h, q, k, *, x: (k < 150) | x[q, k - 150]),
    "dense": ("bool", 2, lambda b, h, q, k, *, x: x[q, k]),
    "by head": ("i32", 2, lambda b, h, q, k, *, x: k > q - x[h, b]),
    "map": ("bool", 2, lambda b, h, q, k, *, x: (x[q // 8, k // 8] | (k < 4)) & (k <= q)),
    "limits": ("i32", 2, lambda b, h, q, k, *, x: (k >= x[b, q]) & (k <= x[b, q] + 90)),
    "nested": ("i32", 2, nested),
}


@pytest.mark.parametrize("name", ON_TENSORS)
@pytest.mark.parametrize("values", ["sorted", "random", "few"])
def test_masks_that_read_tensors(name: str, values: str) -> None:
    """Empty and full are true whatever the tensor holds."""
    kind, dims, mask = ON_TENSORS[name]
    variant = Variant("v", mask=mask, params=[Tensor("x", kind, dims)])
    rng = np.random.default_rng(4)
    x = rng.integers(0, 200 if values == "random" else 4, (400, 400))
    if values == "few":
        x = x * (rng.random(400) < 0.01)[:, None]
    if values == "sorted":
        x = np.sort(x, axis=1)
    x = (x > 1 if kind == "bool" else x).astype(np.bool_ if kind == "bool" else np.int32)
    q, kv = np.arange(0, 400, 40)[:, None], np.arange(0, 400, 32)
    last = np.minimum(kv + 31, 399)
    test = variant.block_test
    assert test is not None and variant.mask is not None and test.tables
    corners = {"b": 2, "h_first": 1, "h_last": 3, "q_first": q, "q_last": q + 39}
    corners |= {"kv_first": kv, "kv_last": last, "x": x}
    corners |= {table.name: table.over(x) for table in test.tables}
    got = kinds(test, corners, {})
    heads, queries = np.arange(1, 4)[:, None, None], np.arange(400)[:, None]
    seen = np.broadcast_to(variant.mask(2, heads, queries, np.arange(400), x=x), (3, 400, 400))
    for (i, j), found in np.ndenumerate(got):
        block = seen[:, q[i, 0] : q[i, 0] + 40, kv[j] : last[j] + 1]
        assert found != EMPTY or not block.any()
        assert found != FULL or block.all()
    if (name, values) in (("documents", "sorted"), ("padding", "sorted")):
        assert set(got.flat) == {EMPTY, PARTIAL, FULL}


@pytest.mark.parametrize("window", [0, (1 << 31) - 1])
def test_large_numbers_do_not_overflow(window: int) -> None:
    """Differences of positions and scalars have 64 bits where 32 may be too few."""

    def mask(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, window: int = 1) -> Any:
        return (kv_idx <= q_idx) & ((kv_idx < 4) | (q_idx - kv_idx <= window))

    variant = Variant("v", mask=mask)
    q, kv = (1 << 30) - 64, np.array([0, 64])
    corners = {"b": 0, "h_first": 0, "h_last": 0, "q_first": q, "q_last": q + 63}
    corners |= {"kv_first": kv, "kv_last": kv + 63}
    got = kinds(block_test(variant.mask, variant.scalars), corners, {"window": window})
    assert got.tolist() == ([FULL, FULL] if window else [PARTIAL, EMPTY])
    test = block_test(variant.mask, variant.scalars)
    assert test is not None
    assert any("int64_t(" in line for line in cpp_values(test.visible._asdict(), test.limits))


HEADER = """
#include <algorithm>
#include <cstdint>
#include <cstdio>
using std::max; using std::min;
struct Params { int size, shift; float slope; };
struct BlockClass { bool some, all; };
"""


def printed(tests: list[BlockTest], blocks: Any, folder: Path) -> Any:
    """(tests, blocks) classes by the C++."""
    functions, calls = [], []
    arguments = ", ".join(f"int {name}" for name in CORNERS)
    for i, test in enumerate(tests):
        body = [*cpp_values(test.visible._asdict(), test.limits), "return {some, all};"]
        head = f"BlockClass f{i}(Params const& params, {arguments}) {{"
        functions.append("\n".join([head, *body, "}"]))
        for block in blocks:
            given = ", ".join(map(str, block))
            calls.append(f"{{ auto c = f{i}(params, {given});"
                         ' std::printf("%d\\n", c.all ? 2 : c.some ? 1 : 0); }')  # fmt: skip
    values = ", ".join(str(SCALARS[p.name]) for p in PARAMS)
    main = ["int main() {", f"Params const params{{{values}f}};", *calls, "}"]
    text = "\n".join([HEADER, floor_functions(), *functions, *main])
    (folder / "blocks.cpp").write_text(text)
    assert COMPILER is not None
    command = [COMPILER, "-std=c++17", "-O0", "-w", "-fsanitize=undefined"]
    command += ["-fsanitize-undefined-trap-on-error", "blocks.cpp", "-o", "blocks"]
    subprocess.run(command, cwd=folder, check=True)
    out = subprocess.run([folder / "blocks"], capture_output=True, text=True, check=True).stdout
    return np.array(out.split(), int).reshape(len(tests), len(blocks))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++, clang++ or c++)")
@given(data=st.data())
@settings(
    max_examples=2,
    derandomize=True,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
def test_the_cpp_says_the_same(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    trees = [data.draw(truths()) for _ in range(60)] + [data.draw(near_masks) for _ in range(60)]
    variants = [variant_of(tree) for tree in trees]
    tests = [t for v in variants if (t := block_test(v.mask, v.scalars)) is not None]
    assert len(tests) > 40
    blocks = [
        (b, 0, 3, q, q + rows, kv, kv + 15)
        for b, rows in ((0, 0), (2, 15))
        for q in (-20, 0, 40)
        for kv in (0, 16, 32, 48)
    ]
    corners = dict(zip(CORNERS, np.array(blocks).T, strict=True))
    got = printed(tests, blocks, tmp_path_factory.mktemp("blocks"))
    for row, test in zip(got, tests, strict=True):
        assert row.tolist() == kinds(test, corners, SCALARS).tolist(), test
