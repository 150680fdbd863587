"""`KernelSpec`: identity, names, reasons."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import pytest

from cute_attn.codegen.spec import KernelSpec, Tile, UnsupportedSpecError
from cute_attn.variants import causal, full

SPEC = KernelSpec(
    arch="sm_90a",
    schedule="hopper_tile",
    dtype="bf16",
    head_dim_qk=128,
    head_dim_vo=128,
    loader="paged",
    group=4,
    variant=causal(),
    tile=Tile(q=128, kv=128, stages=2, threads=384),
)
OTHER: dict[str, Any] = {
    "arch": "sm_90",
    "schedule": "ampere_tile",
    "dtype": "fp16",
    "head_dim_qk": 64,
    "head_dim_vo": 64,
    "per_head": True,
    "loader": "ragged",
    "group": 8,
    "variant": full(),
    "tile": Tile(q=128, kv=64, stages=2, threads=384),
    "delays": True,
    "fixed_pieces": True,
    "trace": True,
}


def test_every_field_tells_specs_apart() -> None:
    assert set(OTHER) == {f.name for f in fields(KernelSpec)}
    specs = {SPEC, *(replace(SPEC, **{name: value}) for name, value in OTHER.items())}
    assert len(specs) == len(OTHER) + 1
    assert len({spec.name for spec in specs}) == len(specs)


def test_equal_specs_are_one() -> None:
    again = replace(SPEC, variant=causal())
    assert again == SPEC and hash(again) == hash(SPEC) and again.name == SPEC.name


def test_name_is_a_readable_symbol() -> None:
    assert SPEC.name.isidentifier()
    assert SPEC.name == f"hopper_tile_bf16_d128_paged_g4_causal_sm_90a_{SPEC.digest}"
    assert "_d128x64_" in replace(SPEC, head_dim_vo=64).name


@pytest.mark.parametrize("switch", ["delays", "fixed_pieces", "per_head", "trace"])
def test_switches_show_in_the_name_and_nowhere_else(switch: str) -> None:
    switched = replace(SPEC, **{switch: True})
    assert switched.name == SPEC.name.replace("_sm_90a_", f"_{switch}_sm_90a_")
    assert repr(switched) == repr(SPEC)  # what the digest, and so every plain name, is made of


def test_reasons() -> None:
    assert SPEC.basic_reasons() == []
    wrong = replace(SPEC, arch="sm_70", dtype="fp8", loader="sparse", group=0)
    reasons = wrong.basic_reasons()
    assert [r.split()[0] for r in reasons] == ["arch", "dtype", "loader", "group"]
    elsewhere = replace(SPEC, schedule="ampere_tile", delays=True).basic_reasons()
    assert elsewhere == ["delays is True; 'ampere_tile' has none, hopper_tile and hopper_mla have"]
    with pytest.raises(UnsupportedSpecError, match="sm_70") as caught:
        raise UnsupportedSpecError(wrong.name, reasons)
    assert caught.value.reasons == reasons
