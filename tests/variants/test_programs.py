"""Random programs: NumPy against Python's own arithmetic, and the C++ against NumPy."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from cute_attn.variants import Scalar, TraceError, Variant
from cute_attn.variants.hook import Hook
from tests.variants.trees import PYTHON, SCALARS, TRACED, Tree, floats, run, truths

COMPILER = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
PARAMS = (
    Scalar("size", "i32", 5, "", lower=1, upper=99),
    Scalar("shift", "i32", -3, "", lower=-99, upper=99),
    Scalar("slope", "f32", 0.75, ""),
)
POINTS = [
    # score, b, h, q_idx, kv_idx
    (0.5, 0, 0, 0, 0),
    (-1.25, 1, 3, 17, 4),
    (3.0, 2, 1, -6, 11),
    (-0.375, 0, 7, 64, 63),
]
NAMES = ("score", "b", "h", "q_idx", "kv_idx")


def hook_of(tree: Tree, role: str) -> Hook:
    def function(*arguments: Any, **scalars: Any) -> Any:
        names = NAMES if role == "logits" else NAMES[1:]
        return run(tree, {**dict(zip(names, arguments, strict=True)), **scalars}, TRACED)

    hook = getattr(Variant("v", **{role: function}, params=PARAMS), role)
    assert isinstance(hook, Hook)
    return hook


def python(tree: Tree) -> list[Any]:
    return [
        run(tree, {**dict(zip(NAMES, point, strict=True)), **SCALARS}, PYTHON) for point in POINTS
    ]


def numpy(hook: Hook, role: str, dtype: Any = np.float64) -> Any:
    score, *rest = (np.array(column) for column in zip(*POINTS, strict=True))
    arguments = [score.astype(dtype), *rest] if role == "logits" else rest
    return np.broadcast_to(hook(*arguments, **SCALARS), len(POINTS))


@given(tree=truths())
@settings(max_examples=300, deadline=None)
def test_masks_in_numpy(tree: Tree) -> None:
    assert numpy(hook_of(tree, "mask"), "mask").tolist() == [bool(x) for x in python(tree)]


@given(tree=floats())
@settings(max_examples=300, deadline=None)
def test_logits_in_numpy(tree: Tree) -> None:
    got = numpy(hook_of(tree, "logits"), "logits")
    np.testing.assert_allclose(got, python(tree), rtol=1e-9, atol=1e-9)


HEADER = """
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <algorithm>
using std::abs; using std::max; using std::min;
static float exp2_approx(float x) { return std::exp2(x); }
static float fast_tanh(float x) { return std::tanh(x); }
static float fast_reciprocal(float x) { return 1.0f / x; }
static float scaled_tanh(float x, float in, float out) { return out * std::tanh(x * in); }
static float fast_exp(float x) { return std::exp(x); }
static float fast_sigmoid(float x) { return 1 / (1 + std::exp(-x)); }
static float tanh_approx(float x) { return std::tanh(x); }
static float sigmoid_approx(float x) { return 1 / (1 + std::exp(-x)); }
static float sigmoid2_approx(float x) { return 1 / (1 + std::exp2(-x)); }
static float fast_sqrt(float x) { return std::sqrt(x); }
static float rsqrtf(float x) { return 1 / std::sqrt(x); }
static float fast_sin(float x) { return std::sin(x); }
static float fast_cos(float x) { return std::cos(x); }
static float fast_pow(float x, float y) { return std::pow(x, y); }
static float log_of(float x) { return std::log(x); }
static float log2_of(float x) { return std::log2(x); }
static float __fdividef(float x, float y) { return x / y; }
static float neg_infinity() { return -INFINITY; }
"""


def floor_functions() -> str:
    """The integer division of the kernels' own header."""
    from cute_attn.codegen.source import INCLUDE_DIR

    text = (INCLUDE_DIR / "cute_attn" / "hook_functions.hpp").read_text()
    start = text.index("CUTE_DEVICE int floor_div")
    return "#define CUTE_DEVICE static\n" + text[start : text.index("}  // namespace")]


def cpp_values(hooks: list[tuple[str, Hook]], folder: Path) -> Any:
    """What the hooks' C++ gives for POINTS: (hooks, points)."""
    functions, prints = [], []
    arguments = "float score, int b, int h, int q_idx, int kv_idx, int size, int shift, float slope"
    values = ", ".join(str(SCALARS[p.name]) for p in PARAMS)
    for i, (role, hook) in enumerate(hooks):
        body = hook.cpp if hook.has_statements else f"return {hook.cpp};"
        kind = "bool" if role == "mask" else "float"
        functions.append(f"static {kind} f{i}({arguments}) {{\n{body}\n}}")
        for point in POINTS:
            given = ", ".join(map(str, point))
            prints.append(f'std::printf("%.9g\\n", double(f{i}({given}, {values})));')
    text = "\n".join([HEADER, floor_functions(), *functions, "int main() {", *prints, "}"])
    # CUDA's names, which glibc has too, as something else.
    text = text.replace("__logf", "log_of").replace("__log2f", "log2_of")
    (folder / "hooks.cpp").write_text(text)
    assert COMPILER is not None
    subprocess.run(
        [COMPILER, "-std=c++17", "-O0", "-w", "hooks.cpp", "-o", "hooks"], cwd=folder, check=True
    )
    printed = subprocess.run([folder / "hooks"], capture_output=True, text=True, check=True).stdout
    return np.array(printed.split(), float).reshape(len(hooks), len(POINTS))


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++, clang++ or c++)")
@given(data=st.data())
@settings(
    max_examples=3,
    derandomize=True,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
def test_the_cpp_computes_the_same(data: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    trees = [("mask", data.draw(truths())) for _ in range(40)]
    trees += [("logits", data.draw(floats())) for _ in range(40)]
    hooks = [(role, hook_of(tree, role)) for role, tree in trees]
    got = cpp_values(hooks, tmp_path_factory.mktemp("hooks"))
    for row, (role, hook) in zip(got, hooks, strict=True):
        expected = numpy(hook, role, np.float32)
        if role == "mask":
            assert row.tolist() == expected.astype(float).tolist(), hook.cpp
        else:
            np.testing.assert_allclose(row, expected, rtol=2e-3, atol=2e-3, err_msg=hook.cpp)


@pytest.mark.parametrize("divisor", [-7, -4, -1, 1, 2, 3, 8])
def test_integer_division_is_pythons(divisor: int, tmp_path: Path) -> None:
    if COMPILER is None:
        pytest.skip("no C++ compiler (g++, clang++ or c++)")
    quotient = hook_of(("add", 0.0, ("floordiv", ("sub", "q_idx", "kv_idx"), divisor)), "logits")
    remainder = hook_of(("add", 0.0, ("mod", ("sub", "q_idx", "kv_idx"), divisor)), "logits")
    got = cpp_values([("logits", quotient), ("logits", remainder)], tmp_path)
    distances = [point[3] - point[4] for point in POINTS]
    assert got[0].tolist() == [d // divisor for d in distances]
    assert got[1].tolist() == [d % divisor for d in distances]


def test_division_by_what_may_be_zero_is_refused() -> None:
    with pytest.raises(TraceError, match="integer division by shift"):
        hook_of(("eq", ("mod", "q_idx", "shift"), 0), "mask")
