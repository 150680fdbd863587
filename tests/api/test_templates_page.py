"""docs/templates.md: its example runs, and it names what templates are given."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cute_attn import Problem, choose, full
from cute_attn.codegen import registered

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "templates.md").read_text()


def test_the_example_and_the_table_of_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(registered.REGISTERED, "row_per_thread", raising=False)
    ((code,),) = [re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)]
    monkeypatch.chdir(ROOT)
    names: dict[str, object] = {}
    exec(code.replace('schedule="row_per_thread")', 'schedule="row_per_thread", device="cpu")'),
         names)  # fmt: skip
    given: dict[str, object] = {}

    def render(template: Path, **values: object) -> str:
        given.update(values)
        return ""

    monkeypatch.setattr(registered, "render", render)
    own = registered.REGISTERED.pop("row_per_thread")
    monkeypatch.setitem(registered.REGISTERED, "row_per_thread", own)
    own.emit(choose(Problem("sm_90a", "bf16", 64, 64, 4, full(), None), rows=None,
                    schedule="row_per_thread"))  # fmt: skip
    rows = re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE)
    assert set(re.findall(r"`(\w+)`", " ".join(rows))) == set(given)
