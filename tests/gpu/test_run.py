"""The runner goes on after a test that took its process with it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from perf import records
from tests.gpu import conftest, run


@pytest.mark.parametrize(
    ("crash", "code"),
    [
        ("none", 0),
        ("lost device", conftest.DEVICE_LOST),
        ("lost device, then aborted", -6),
        ("killed", -9),
        ("timed out", 1),
    ],
)
def test_the_rest_is_run_in_a_new_process(
    crash: str,
    code: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A stand-in for pytest runs tests a, b and c; b ends the first process."""
    path = tmp_path / "results.jsonl"
    children = []

    def child(arguments: list[str], environment: dict[str, str], seconds: float) -> int:
        children.append(arguments)
        done = Path(environment[conftest.DONE])
        old, hit = done.read_text().split(), False
        for test in [name for name in ("t[a]", "t[b]", "t[c]") if name not in old]:
            with done.open("a") as file:
                file.write(test + "\n")
            hit = test == "t[b]" and code != 0
            if not hit or "lost device" in crash:  # a process that is ended writes no row
                rows = records.Records(path, {"gpu": "x"}, append=True)
                rows.add("G", test[2], outcome="failed" if hit else "passed")
            if hit and "aborted" not in crash:
                return code
            if hit:
                break
        with done.open("a") as file:
            file.write(conftest.FINISHED + "\n")
        return code if hit else 0

    monkeypatch.setattr(run, "run_child", child)
    monkeypatch.setattr(sys, "argv", ["run", "--results", str(path), "-k", "t"])
    status = run.main()
    outcomes = {row["cfg"]: row["outcome"] for row in records.read(path) if "cfg" in row}
    middle = "passed" if code == 0 else "failed" if "lost device" in crash else "crashed"
    assert outcomes == {"a": "passed", "b": middle, "c": "passed"}
    assert len(children) == (1 if crash == "none" else 2)
    assert children[0] == ["-k", "t"]
    assert status == (0 if crash == "none" else 1)
    assert "3 rows" in capsys.readouterr().out


def test_a_run_that_cannot_start_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "run_child", lambda *_: 3)
    monkeypatch.setattr(sys, "argv", ["run", "--results", str(tmp_path / "r.jsonl")])
    assert run.main() == 1
