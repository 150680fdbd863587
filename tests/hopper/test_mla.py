"""The kernel of latent rows: which specs it takes, what it is made of, what it compiles to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cute_attn import (
    KernelSpec,
    Problem,
    TuneStep,
    UnsupportedSpecError,
    Variant,
    attention_sinks,
    build,
    causal,
    choose,
    custom_mask,
    export_bundle,
    full,
    rope,
    sigmoid_attention,
    sliding_window,
    soft_cap,
)
from cute_attn.api import dispatch
from cute_attn.api.kv_fields import latent_views
from cute_attn.export import BundleError
from cute_attn.formats import PagedKV, kv_views
from cute_attn.hopper import mla
from cute_attn.hopper.equations import REGISTERS_PER_SM, SMEM_PER_BLOCK
from cute_attn.scheduler import CostModel

PAGED = Problem("sm_90a", "bf16", 576, 512, 128, causal(), 64)


def spec_of(**changed: object) -> KernelSpec:
    return choose(replace(PAGED, **changed), rows=None)


@pytest.mark.parametrize(
    "page_size, loader",
    [(64, "paged"), (16, "paged"), (1, "gather"), (3, "gather"), (None, "ragged")],
)
@pytest.mark.parametrize("group", [1, 12, 16, 96, 128])
def test_every_format_and_group_has_a_kernel(
    page_size: int | None, loader: str, group: int
) -> None:
    spec = spec_of(page_size=page_size, group=group)
    assert (spec.schedule, spec.loader, spec.tile) == ("hopper_mla", loader, mla.TILE)
    text = dispatch.emit(spec).text
    by_box = group in (16, 128)
    assert ("params.q_map" in text) == by_box
    assert len(text.splitlines()) < 420  # a person reads it


def test_resources() -> None:
    tile = mla.TILE
    assert mla.smem_bytes(tile) <= SMEM_PER_BLOCK
    registers = 128 * (tile.producer_registers + 2 * tile.consumer_registers)
    assert registers <= REGISTERS_PER_SM // (8 * tile.threads) * 8 * tile.threads


@pytest.mark.parametrize("page_size", [64, 1, None])
def test_it_compiles_without_spills_and_serialised_products(page_size: int | None) -> None:
    resources = build(spec_of(page_size=page_size)).resources
    assert resources.spill_store_bytes == 0 and resources.stack_bytes == 0
    assert resources.performance_warnings == ()


@pytest.mark.parametrize(
    "variant, message",
    [
        (causal() & soft_cap(), "transforms scores"),
        (causal() & attention_sinks(), "acts on finished rows"),
        (sigmoid_attention(100), "has no softmax"),
        (causal() & rope(), "transforms vectors"),
        (custom_mask(), "is no band of keys"),
    ],
)
def test_variants_that_are_refused(variant: Variant, message: str) -> None:
    with pytest.raises(UnsupportedSpecError, match=message):
        spec_of(variant=variant)


@pytest.mark.parametrize("variant", [full(), causal(), causal() & sliding_window()])
def test_bands(variant: Variant) -> None:
    text = dispatch.emit(spec_of(variant=variant)).text
    assert ("block < interior_begin" in text) == (variant.band.left is not None)


def test_other_architectures_and_options_are_refused() -> None:
    for arch in ("sm_80", "sm_86", "sm_89", "sm_90"):
        with pytest.raises(UnsupportedSpecError, match="hopper_mla: arch is"):
            spec_of(arch=arch)
    with pytest.raises(UnsupportedSpecError, match="dtype is 'e4m3'"):
        spec_of(dtype="e4m3")
    for name in ("trace", "fixed_pieces", "per_head"):
        with pytest.raises(UnsupportedSpecError, match=f"{name} is True"):
            dispatch.emit(replace(spec_of(), **{name: True}))
    with pytest.raises(UnsupportedSpecError, match="there is one"):
        dispatch.emit(dispatch.with_tile(spec_of(), kv=32))
    with pytest.raises(UnsupportedSpecError, match="known: \\(576, 512\\)"):
        dispatch.spec_for(replace(PAGED, head_dim_vo=128), "hopper_mla")


def test_bundles_and_the_tuner_say_that_they_have_none(tmp_path: object) -> None:
    with pytest.raises(BundleError, match="no recipe for the two tensor maps of latent rows"):
        export_bundle(f"{tmp_path}/bundle", [PAGED])
    with pytest.raises(ValueError, match="one tile, so there is nothing to tune"):
        TuneStep("mla", (1,), (100,), 16, 1, 576, 64, value_dim=512)


def test_rows_are_read_once_in_plans() -> None:
    apart = CostModel.for_kernel(576, 512, schedule="hopper_tile")
    latent = CostModel.for_kernel(576, 512, schedule="hopper_tile", latent=True)
    assert (latent.key_bytes, apart.key_bytes) == (1152, 2176)
    assert latent.key_ps / apart.key_ps == pytest.approx(1152 / 2176, rel=1e-3)
    assert latent.row_key_ps == apart.row_key_ps


def test_values_must_be_columns_of_the_keys() -> None:
    cache = torch.zeros(5, 16, 1, 576, dtype=torch.bfloat16)
    kv_format = PagedKV([0, 5], [0, 1, 2, 3, 4], [16], 16)
    views = latent_views(kv_views(kv_format, cache, cache[..., :512], "NHD"))
    assert views.k.shape[-1] == 64 and views.k.data_ptr() == cache.data_ptr() + 1024
    rotary = cache[..., 512:].clone()
    assert latent_views(kv_views(kv_format, rotary, cache[..., :512], "NHD")).k is not None
    for v in (cache[..., :512].clone(), cache[..., 64:]):
        with pytest.raises(ValueError, match="v is no view of k"):
            latent_views(kv_views(kv_format, cache, v, "NHD"))
