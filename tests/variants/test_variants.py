"""Built-in variants: NumPy hooks against definitions, C++ text against NumPy, errors."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cute_attn.abi import UNBOUNDED
from cute_attn.variants import (
    Band,
    Hook,
    Scalar,
    Variant,
    causal,
    full,
    sliding_window,
    soft_cap,
)

COMPILER = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
Q = np.arange(-3, 12)[:, None]
KV = np.arange(0, 12)[None, :]


def mask(variant: Variant, **scalars: float) -> Any:
    assert variant.mask is not None
    return variant.mask.evaluate(0, 0, Q, KV, **variant.values(scalars))


def test_masks() -> None:
    assert np.array_equal(mask(causal()), KV <= Q)
    # window_left = W keeps W + 1 keys, the query's own included.
    window = mask(causal() & sliding_window(), window_left=3)
    assert np.array_equal(window, (KV <= Q) & (Q - KV <= 3))
    assert window[-1].sum() == 4
    assert full().mask is None


def test_soft_cap() -> None:
    hook = soft_cap().logits
    assert hook is not None
    score = np.linspace(-200, 200, 41)
    got = hook.evaluate(score, 0, 0, 0, 0, logits_soft_cap=20.0)
    assert np.allclose(got, 20 * np.tanh(score / 20))


@pytest.mark.parametrize(
    ("variant", "scalars", "band"),
    [
        (full(), {}, (UNBOUNDED, UNBOUNDED)),
        (causal(), {}, (UNBOUNDED, 0)),
        (sliding_window(), {"window_left": 7}, (7, UNBOUNDED)),
        (sliding_window(), {}, (UNBOUNDED, UNBOUNDED)),
        (causal() & sliding_window(), {"window_left": 0}, (0, 0)),
        (sliding_window() & causal(), {"window_left": 2}, (2, 0)),
        (soft_cap() & causal(), {}, (UNBOUNDED, 0)),
    ],
    ids=lambda x: x.name if isinstance(x, Variant) else None,
)
def test_bands(variant: Variant, scalars: dict[str, int], band: tuple[int, int]) -> None:
    assert variant.band.resolve(variant.values(scalars)) == band


@pytest.mark.parametrize("variant", [causal(), sliding_window(), causal() & sliding_window()])
def test_a_band_that_is_the_mask(variant: Variant) -> None:
    left, right = variant.band.resolve(
        variant.values({"window_left": 4} if variant.scalars else {})
    )
    distance = Q - KV
    inside = (distance <= left) & (distance >= -right)
    scalars = {"window_left": 4.0} if variant.scalars else {}
    assert variant.band_is_mask
    assert np.array_equal(mask(variant, **scalars), inside)


def test_combination() -> None:
    both = causal() & soft_cap()
    assert both.name == "causal_soft_cap"
    assert both.mask == causal().mask
    assert both.logits == soft_cap().logits
    assert (causal() & sliding_window()) == (causal() & sliding_window())
    assert hash(causal() & sliding_window()) == hash(causal() & sliding_window())
    odd = Variant("odd", Hook("odd", "kv_idx % 2 == 1", lambda b, h, q, k, **_: k % 2 == 1),
                  band_is_mask=False)  # fmt: skip
    mixed = causal() & odd
    assert not mixed.band_is_mask
    assert np.array_equal(mask(mixed), (KV <= Q) & (KV % 2 == 1))
    text = Hook("narrow", "kv_idx >= q_idx - 3 && kv_idx <= q_idx + 5")
    narrow = Variant("narrow", text, band=Band(left=3, right=5), band_is_mask=True)
    assert (narrow & causal()).band == Band(left=3, right=0)
    assert (narrow & causal()).band_is_mask


def test_what_cannot_be_combined() -> None:
    with pytest.raises(ValueError, match="both transform logits"):
        soft_cap() & soft_cap()
    other = Variant("other", params=[Scalar("window_left", "i32", 5, "something else")])
    with pytest.raises(ValueError, match="two different parameters are called 'window_left'"):
        sliding_window() & other


def test_bad_values() -> None:
    with pytest.raises(ValueError, match=r"'window' has no scalar \['windw'\].*window_left"):
        sliding_window().values({"windw": 3})
    with pytest.raises(ValueError, match=r"window_left is 2.5; it takes a 32-bit integer"):
        sliding_window().values({"window_left": 2.5})
    with pytest.raises(ValueError, match="logits_soft_cap is 0; it must be above 0"):
        soft_cap().values({"logits_soft_cap": 0})
    with pytest.raises(ValueError, match="window_left is -1; it takes 0 or more"):
        sliding_window().band.resolve({"window_left": -1})


def test_bad_variants() -> None:
    with pytest.raises(ValueError, match="C identifier"):
        Variant("my variant")
    with pytest.raises(ValueError, match="has no mask hook"):
        Variant("x", band=Band(right=0))
    with pytest.raises(ValueError, match="limited by 'size', which is none"):
        Variant("x", mask=Hook("all", "true"), band=Band(left="size"))
    with pytest.raises(ValueError, match="'x' is given a band but derives it from its traced mask"):
        Variant("x", mask=causal().mask, band=Band(left=3))
    for name in ("kv_idx", "lag", "values", "params", "double", "2x"):
        with pytest.raises(ValueError, match=f"a scalar is called '{name}'"):
            Scalar(name, "i32", 0, "")
    with pytest.raises(ValueError, match="'f64'"):
        Scalar("x", "f64", 0, "")


PROGRAM = """
#include <cmath>
#include <cstdio>
static float tanh_approx(float x) {{ return std::tanh(x); }}
static float fast_reciprocal(float x) {{ return 1.0f / x; }}
int main() {{
  int b = 1, h = 2, window_left = 4;
  float logits_soft_cap = 20.0f;
  for (int q_idx = -3; q_idx < 12; ++q_idx)
    for (int kv_idx = 0; kv_idx < 12; ++kv_idx) {{
      float score = 7.0f * (q_idx - kv_idx);
      std::printf("%d %.9g\\n", int({mask}), double({logits}));
    }}
  (void)b, (void)h, (void)window_left, (void)logits_soft_cap;
}}
"""


@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler (g++, clang++ or c++)")
def test_cpp_text_means_the_same(tmp_path: Path) -> None:
    variant = causal() & sliding_window() & soft_cap()
    assert variant.mask is not None and variant.logits is not None and COMPILER is not None
    source = tmp_path / "hooks.cpp"
    source.write_text(PROGRAM.format(mask=variant.mask.cpp, logits=variant.logits.cpp))
    subprocess.run([COMPILER, "-O0", str(source), "-o", str(tmp_path / "hooks")], check=True)
    printed = subprocess.run([tmp_path / "hooks"], capture_output=True, text=True, check=True)
    table = np.array([line.split() for line in printed.stdout.splitlines()], float)
    scalars = {"window_left": 4, "logits_soft_cap": 20.0}
    visible = variant.mask.evaluate(1, 2, Q, KV, **scalars)
    scores = variant.logits.evaluate(7.0 * (Q - KV), 1, 2, Q, KV, **scalars)
    assert np.array_equal(table[:, 0].reshape(15, 12), visible)
    assert np.allclose(table[:, 1].reshape(15, 12), scores, rtol=1e-6, atol=1e-6)
