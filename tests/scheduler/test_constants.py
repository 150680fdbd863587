"""Constants of a GPU: what plans and predictions take from them, and their files."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cute_attn.scheduler import (
    BUILT_IN,
    H200,
    Constants,
    CostModel,
    Geometry,
    RequestBatch,
    Timing,
    plan_batch,
)
from cute_attn.scheduler.constants_file import (
    ConstantsFileError,
    constants_text,
    read_constants,
    read_file,
)

NAME, SMS = "NVIDIA H200", 132
OF_GPU = replace(BUILT_IN, gpu=replace(H200, name=NAME))
MADE: dict[str, str | int | float] = {"date": "2026-11-30", "cases": 3}


@pytest.mark.parametrize(
    ("arguments", "costs"),
    [
        (("hopper_tile", 128, 128, 1), (3500, 87, 14588, 14701, 512, 300)),
        (("hopper_tile", 64, 64, 1), (2000, 71, 7294, 7408, 256, 300)),
        (("hopper_tile", 192, 128, 1), (4000, 112, 18234, 14701, 640, 300)),
        (("hopper_tile", 256, 256, 1), (6000, 185, 29175, 29289, 1024, 300)),
        (("ampere_tile", 128, 128, 2), (6000, 354, 29175, 29403, 512, 0)),
        (("ampere_decode", 128, 128, 1), (6000, 113, 14588, 14701, 512, 0)),
        (("ampere_decode", 128, 128, 3), (2000, 340, 43763, 44104, 512, 0)),
    ],
)
def test_plans_are_judged_by_these_integers(
    arguments: tuple[str, int, int, int], costs: tuple[int, ...]
) -> None:
    """Whatever is predicted: other costs are other plans, and other measured figures."""
    schedule, qk, vo, blocks = arguments
    cost = CostModel.for_kernel(qk, vo, schedule=schedule, blocks_per_sm=blocks)
    names = ("tile_ns", "row_key_ps", "key_ps", "partial_row_ps", "key_bytes", "masked_ns")
    assert tuple(getattr(cost, name) for name in names) == costs
    assert (cost.merge_ns, cost.merge_row_ps) == (1500, round(4000 * (vo + 1) / 129))


def scaled(name: str, by: float) -> Constants:
    """The built-in ones but for a time of one row."""
    row = BUILT_IN.times["hopper_tile"][128]
    changed = replace(row, **{name: getattr(row, name) * by})
    rows = {**BUILT_IN.times["hopper_tile"], 128: changed}
    return replace(BUILT_IN, times={**BUILT_IN.times, "hopper_tile": rows})


def test_plan_costs_follow_what_was_measured() -> None:
    def cost(constants: Constants) -> CostModel:
        return CostModel.for_kernel(schedule="hopper_tile", constants=constants)

    same = cost(BUILT_IN)
    assert cost(scaled("item_us", 2)) == replace(same, tile_ns=7000, masked_ns=600)
    half = cost(scaled("efficiency", 0.5))
    assert half.row_key_ps == pytest.approx(2 * same.row_key_ps, abs=1)
    assert replace(half, row_key_ps=same.row_key_ps) == same
    for name in ("start_us", "masked_us", "paged", "read_share", "sm_share", "merge_us"):
        assert cost(scaled(name, 0.5)) == same, "times that no plan depends on"
    slow = replace(BUILT_IN, gpu=replace(H200, read_gbps=H200.read_gbps / 2))
    assert cost(slow).key_ps == pytest.approx(2 * same.key_ps, abs=1)


def test_other_constants_are_other_plans() -> None:
    requests = RequestBatch.from_lengths(np.ones(9, int), np.arange(9) * 3000 + 500)
    geometry = Geometry(8, 64, 4, 8, window_right=0)
    slow = replace(BUILT_IN, gpu=replace(H200, read_gbps=2000.0))
    plans = [
        plan_batch(requests, geometry, 132, cost=CostModel.for_kernel(constants=constants))
        for constants in (BUILT_IN, slow, BUILT_IN)
    ]
    assert np.array_equal(plans[0].buffer, plans[2].buffer)
    assert not np.array_equal(plans[0].buffer, plans[1].buffer)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    target = tmp_path / "costs.json"
    target.write_text(constants_text(OF_GPU, MADE))
    return target


def test_a_file_gives_back_what_was_written(path: Path) -> None:
    found = read_constants(path, name=NAME, sms=SMS)
    assert (found.gpu, found.times) == (OF_GPU.gpu, OF_GPU.times)
    assert found.source == str(path)
    assert read_file(path)[1] == MADE
    for schedule in BUILT_IN.times:
        for make in (CostModel, Timing):
            own, other = (make.for_kernel(schedule=schedule, constants=x) for x in (found, OF_GPU))
            assert asdict(own) == asdict(other)


def test_numbers_are_rounded_to_what_is_known(path: Path) -> None:
    gpu = replace(OF_GPU.gpu, read_gbps=1234.56789)
    path.write_text(constants_text(replace(OF_GPU, gpu=gpu), MADE))
    assert read_file(path)[0].gpu.read_gbps == 1234.6


def change(path: Path, keys: tuple[str, ...], value: Any) -> None:
    """Sets a field, or with `...` drops it."""
    whole = json.loads(path.read_text())
    at = whole
    for key in keys[:-1]:
        at = at[key]
    if value is ...:
        del at[keys[-1]]
    else:
        at[keys[-1]] = value
    path.write_text(json.dumps(whole))


ROW = ("kernels", "hopper_tile", "128")


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        (("schema",), 2, r"schema is 2; this version reads 1; measure again"),
        (("schema",), True, r"schema is True"),
        (("gpu",), ..., r"gpu is missing"),
        (("gpu",), 3, r"gpu is 3; it takes an object"),
        (("extra",), 3, r"extra is not known; the file takes schema, gpu"),
        (("gpu", "sms"), 131.5, r"gpu\.sms is 131\.5; it takes a whole number"),
        (("gpu", "sms"), True, r"gpu\.sms is True"),
        (("gpu", "name"), "", r"gpu\.name is ''; it takes the name"),
        (("gpu", "tflops"), 0, r"gpu\.tflops is 0; it takes a number of more than 0"),
        (("gpu", "read_gbps"), "fast", r"gpu\.read_gbps is 'fast'; it takes a number"),
        (("gpu", "read_gbps"), math.inf, r"gpu\.read_gbps is inf"),
        (("kernels", "hopper_tile"), ..., r"kernels\.hopper_tile is missing; measure again"),
        (("kernels", "volta_tile"), {}, r"kernels\.volta_tile is not known"),
        (("kernels", "ampere_tile"), {}, r"kernels\.ampere_tile is \{\}; it takes an object with"),
        (("kernels", "ampere_tile", "big"), {}, r"ampere_tile\.big is not known; .* head dims"),
        ((*ROW, "item_us"), ..., r"kernels\.hopper_tile\.128\.item_us is missing"),
        ((*ROW, "item_us"), 0, r"kernels\.hopper_tile\.128\.item_us is 0; .* more than 0"),
        ((*ROW, "item_us"), True, r"item_us is True; it takes a number"),
        ((*ROW, "start_us"), -1, r"start_us is -1; it takes a number of at least 0"),
        ((*ROW, "start_us"), math.nan, r"start_us is nan"),
        ((*ROW, "read_share"), 1.5, r"read_share is 1\.5; .* more than 0 and at most 1"),
        ((*ROW, "speed"), 1, r"kernels\.hopper_tile\.128\.speed is not known"),
        (("made",), [], r"made is \[\]; it takes an object"),
    ],
)
def test_errors_name_file_and_field(
    path: Path, keys: tuple[str, ...], value: Any, message: str
) -> None:
    change(path, keys, value)
    with pytest.raises(ConstantsFileError, match=message) as caught:
        read_constants(path, name=NAME, sms=SMS)
    assert str(caught.value).startswith(f"{path}: ")


def test_what_may_be_zero(path: Path) -> None:
    for name in ("start_us", "masked_us", "merge_us"):
        change(path, (*ROW, name), 0)
    assert read_constants(path, name=NAME, sms=SMS).times["hopper_tile"][128].start_us == 0


@pytest.mark.parametrize(("name", "sms"), [("NVIDIA H100", 132), (NAME, 114)])
def test_a_file_of_another_gpu(path: Path, name: str, sms: int) -> None:
    with pytest.raises(ConstantsFileError, match=rf"'NVIDIA H200' and 132, .*'{name}' with {sms}"):
        read_constants(path, name=name, sms=sms)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[1]"])
def test_files_that_are_none(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ConstantsFileError, match=rf"^{path}: "):
        read_file(path)
    path.unlink()
    with pytest.raises(ConstantsFileError, match="cannot be read"):
        read_file(path)
