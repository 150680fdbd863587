"""The example of docs/torch.md runs, and its table names the operators that there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from cute_attn.api import one_shot_op, torch_ops

PAGE = Path(__file__).parents[2] / "docs" / "torch.md"


def test_the_example_runs() -> None:
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    exec(code, names)
    batch, q, k, v = (names[name] for name in ("batch", "q", "k", "v"))
    assert torch.equal(names["result"], batch.run(q, k, v).flatten(1))


def test_the_table_is_complete() -> None:
    named = re.findall(r"^\| `(\w+)\(", PAGE.read_text(), re.MULTILINE)
    sources = [Path(module.__file__ or "").read_text() for module in (torch_ops, one_shot_op)]
    defined = re.findall(r'define\(\s*"(\w+)\(', "".join(sources))
    assert sorted(named) == sorted(defined)
