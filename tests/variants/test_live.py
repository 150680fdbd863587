"""`Variant.live()`: scalars that kernels read from memory."""

from __future__ import annotations

import numpy as np
import pytest

from cute_attn.codegen.hooks import cpp_band, cpp_hooks
from cute_attn.codegen.vector_hooks import vector_hooks
from cute_attn.variants import (
    Hook,
    Scalar,
    Variant,
    causal,
    prefix_lm,
    rope,
    sliding_window,
    soft_cap,
)


def test_chosen_scalars_and_all() -> None:
    both = causal() & sliding_window() & soft_cap()
    assert [s.live for s in both.scalars] == [False, False]
    assert [s.live for s in both.live().scalars] == [True, True]
    one = both.live("logits_soft_cap")
    assert [s.name for s in one.scalars if s.live] == ["logits_soft_cap"]
    assert one.band == both.band and one.band_is_mask and one.name == both.name
    assert one != both and one.live() == both.live()
    assert "logits_soft_cap: f32 = 30.0, above 0, live" in one.show()
    assert causal().live() == causal()
    with pytest.raises(ValueError, match=r"'soft_cap' has no scalar \['cap'\]; it has: \['log"):
        soft_cap().live("cap")


def test_names_of_kernels_tell_live_scalars() -> None:
    """They are made of what `repr` shows; limits are in no kernel."""
    plain, live = (repr(Scalar("n", "i32", 3, live=x, lower=0)) for x in (False, True))
    assert plain == "Scalar(name='n', kind='i32', default=3, comment='', positive=False)"
    assert live == plain[:-1] + ", live=True)"


def test_numpy_is_the_same() -> None:
    q, kv = np.arange(9)[:, None], np.arange(9)[None, :]
    window = causal() & sliding_window()
    assert window.mask is not None and window.live().mask is not None
    masks = [x.mask(0, 0, q, kv, window_left=2) for x in (window, window.live()) if x.mask]
    np.testing.assert_array_equal(*masks)
    assert window.live().bake(window_left=2) == window.bake(window_left=2)


def test_no_factor_of_the_host() -> None:
    """A captured graph keeps `sm_scale`: a live factor stays in the hook."""
    for variant, left in ((soft_cap(), None), (soft_cap().live(), "logits_soft_cap")):
        assert variant.logits is not None and variant.logits.program is not None
        stages = variant.logits.program.stages
        assert (stages.factor is None) == (stages.exponent is None) == (left is not None)
        assert stages.score.reads == {"score", left} - {None}


def test_reads_in_cpp() -> None:
    live = (causal() & sliding_window() & soft_cap()).live()
    assert cpp_band(live.band, live.scalars) == ("min(__ldg(params.window_left), 1 << 30)", "0")
    text = cpp_hooks(live)
    assert "int32_t const window_left = __ldg(params.window_left);" in text
    assert "float const logits_soft_cap = __ldg(params.logits_soft_cap);" in text
    block = cpp_hooks(prefix_lm().live())
    assert "kv_first < __ldg(params.prefix_length)" in block
    assert "params.prefix_length" not in block.replace("__ldg(params.prefix_length)", "")
    turned = vector_hooks(rope().live("rope_theta"), 64, 64).text
    assert "double const rope_theta = __ldg(params.rope_theta);" in turned


def test_text_reads_them_by_name() -> None:
    text = Variant("near", mask=Hook("near", "kv_idx > q_idx - n"), params=[Scalar("n", "i32", 3)])
    assert "int32_t const n = __ldg(params.n);" in cpp_hooks(text.live())
    mixed = (causal() & text).live("n")
    assert "int32_t const n = __ldg(params.n);" in cpp_hooks(mixed)


def test_values_of_a_row() -> None:
    """What a live scalar decides for a row is computed once for it."""

    def slope(score, b, h, q_idx, kv_idx, *, rate: float = 0.5):  # type: ignore[no-untyped-def]
        return score - 2.0 ** (-rate * (h + 1)) * (q_idx - kv_idx)

    text = cpp_hooks(Variant("slope", logits=slope).live())
    assert "__ldg(params.rate)" in text.split("CUTE_DEVICE float variant_logits")[0]
