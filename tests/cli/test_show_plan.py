"""`cute-attn show --what plan`: explained, as a picture, and as a batch runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cute_attn.workloads import load_steps

Invoke = Callable[..., Any]
HOPPER = ("--arch", "sm_90a", "--page-size", "16", "--what", "plan")
STEP = "mooncake-2600"
PAIRS = next(step.requests for step in load_steps() if step.name == STEP)


def test_two_launches(invoke: Invoke, tmp_path: Path) -> None:
    picture = tmp_path / "step.svg"
    options = ("--step", STEP, "--beside", "--explain", "--picture", str(picture))
    result = invoke("show", *HOPPER, *options)
    assert result.exit_code == 0, result.output
    for words in ("2 launches side by side", "hopper_tile: ", "ampere_decode: ", f"{picture}"):
        assert words in result.output
    assert picture.read_text().count("<svg") == 1


def test_json_lists_all_items(invoke: Invoke) -> None:
    result = invoke("show", *HOPPER, "--step", STEP, "--beside", "--explain", "--json")
    facts = json.loads(result.stdout)
    prefill, decode = facts["launches"]
    assert prefill["requests"] + decode["requests"] == len(PAIRS)
    assert prefill["thread_blocks"] + decode["thread_blocks"] / 3 == 132
    items = facts["items"]
    assert len(items) == prefill["pieces"] + decode["pieces"]
    decodes = [index for index, (q_len, _) in enumerate(PAIRS) if q_len == 1]
    assert {item["request"] for item in items if item["launch"] == 1} == set(decodes)
    keys = sum(i["key_end"] - i["key_begin"] for i in items if i["launch"] == 1)
    assert keys == 8 * sum(PAIRS[index][1] for index in decodes)


def test_beside_is_what_a_batch_does(invoke: Invoke) -> None:
    """Decodes alone are one launch, of the decode kernel."""
    result = invoke("show", *HOPPER, "--step", "azure-chat-500", "--beside", "--json")
    (launch,) = json.loads(result.stdout)["launches"]
    assert launch["kernel"].startswith("ampere_decode")
    assert launch["thread_blocks"] % 132 == 0


def test_one_kernel(invoke: Invoke) -> None:
    result = invoke("show", *HOPPER, "--step", "azure-chat-900", "--blocks", "12", "--explain")
    assert result.exit_code == 0
    assert "hopper_tile: 12 thread blocks on 12 SMs" in result.output
    assert "side by side" not in result.output


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--what", "source", "--explain"), ["--explain", "takes --what plan"]),
        (("--picture", "a.png"), ["--picture", "takes --what plan"]),
        (("--what", "plan", "--beside", "--blocks", "3"), ["--beside", "none of", "--blocks"]),
        (("--what", "plan", "--picture", "a.xyz"), ["--picture", "'a.xyz'", ".svg"]),
        (("--what", "plan", "--picture", "no/such/a.png"), ["--picture", "no/such"]),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: tuple[str, ...], words: list[str], invoke: Invoke
) -> None:
    result = invoke("show", "--arch", "sm_90a", *arguments)
    assert result.exit_code == 2
    (error,) = [x for x in result.output.splitlines() if x.startswith("Error: ")]
    for word in words:
        assert word in error
