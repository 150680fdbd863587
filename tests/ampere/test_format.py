"""The generated source is in the project's C++ style, as if written by hand."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cute_attn import ampere
from cute_attn.variants import Variant, causal, full, qk_norm, rope, sliding_window, soft_cap
from tests.ampere.specs import SCHEDULES, even_keys, make_spec

ROOT = Path(__file__).parents[2]


def clang_format(text: str) -> str:
    beside_python = Path(sys.executable).with_name("clang-format")
    tool = str(beside_python) if beside_python.exists() else shutil.which("clang-format")
    if tool is None:
        pytest.skip("clang-format is not installed")
    command = [tool, "--assume-filename=kernel.hpp"]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(
    "variant",
    [
        full(),
        causal(),
        causal() & sliding_window(),
        causal() & soft_cap(),
        even_keys(),
        causal() & qk_norm() & rope(rotary_dim=32),
    ],
    ids=lambda v: v.name,
)
@pytest.mark.parametrize("loader", ["ragged", "paged"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_clang_format_has_nothing_to_say(
    schedule: str, variant: Variant, loader: str, head_dim: int
) -> None:
    spec = make_spec(schedule, variant=variant, loader=loader, head_dim=head_dim, group=4)
    text = ampere.emit(spec).text
    # The parameter block and the user's hooks are printed by codegen, in columns of their own.
    text = re.sub(r"struct Params \{.*?\n#undef AT\n", "struct Params;\n", text, flags=re.DOTALL)
    text = re.sub(
        r"CUTE_DEVICE \w+ variant_\w+\(.*?\n\}\n", "bool hook();\n", text, flags=re.DOTALL
    )
    text = re.sub(r"struct \w+Hook .*?\n\};\n", "struct Hook;\n", text, flags=re.DOTALL)
    assert text.splitlines() == clang_format(text).splitlines()
