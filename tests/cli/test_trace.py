"""`cute-attn trace`: the predicted timeline, and refusals; measured ones need a GPU."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cute_attn.workloads import load_steps

Invoke = Callable[..., Any]


def test_predicted(invoke: Invoke, tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    options = ("--predicted", "--arch", "sm_90a", "--out", str(path), "--json")
    result = invoke("trace", "--step", "mooncake-2600", *options)
    assert result.exit_code == 0, result.output
    facts = json.loads(result.stdout)
    events = json.loads(path.read_text())["traceEvents"]
    items = [event for event in events if event["name"].startswith("request ")]
    assert facts["file"] == str(path) and facts["items"] == len(items)
    step = next(step for step in load_steps() if step.name == "mooncake-2600")
    assert {item["args"]["request"] for item in items} == set(range(len(step.requests)))
    processes = [e["args"]["name"] for e in events if e["name"] == "process_name"]
    assert processes == ["hopper_tile, predicted", "ampere_decode, predicted"]
    assert facts["predicted_us"] > 0
    assert str(path) in invoke("trace", *options[:-1]).output


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about machines without a GPU")
def test_without_a_gpu_one_line_says_so(invoke: Invoke, tmp_path: Path) -> None:
    result = invoke("trace", "--out", str(tmp_path / "step.json"))
    assert result.exit_code == 1
    (line,) = result.stderr.splitlines()
    assert line.startswith("error: trace runs a step on a GPU, and there is none: --predicted")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--arch", "sm_80"), 2, ["--arch", "--predicted"]),
        (
            ("--predicted", "--arch", "sm_90a", "--step", "monday"),
            2,
            ["'monday'", "azure-chat-500"],
        ),
        (("--predicted", "--arch", "sm_90a", "--variant", "alibo"), 2, ["--variant", "'alibo'"]),
        (("--predicted", "--arch", "sm_90a", "--out", "no/such/a.json"), 1, ["no/such/a.json"]),
    ],
)
def test_wrong_input_is_one_line(
    arguments: tuple[str, ...], code: int, words: list[str], invoke: Invoke
) -> None:
    result = invoke("trace", *arguments)
    assert result.exit_code == code
    (error,) = (x for x in result.output.splitlines() if x.lower().startswith("error: "))
    for word in words:
        assert word in error
