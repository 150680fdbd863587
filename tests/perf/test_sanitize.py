"""What compute-sanitizer is asked, and how its words become a row."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from perf import records, sanitize

RACES = "========= RACECHECK SUMMARY: 3 hazards displayed (1 error, 2 warnings)\n"
CLEAN = "========= ERROR SUMMARY: 0 errors\n"


@pytest.mark.parametrize(
    ("output", "found"),
    [
        (CLEAN, {"errors": 0}),
        ("2 passed\n========= ERROR SUMMARY: 12 errors\n", {"errors": 12}),
        (RACES, {"errors": 1, "warnings": 2}),
        (RACES.replace("3", "0").replace("1 error,", "0 errors,").replace("2", "0"), None),
        ("========= Target application returned an error\n", {}),
    ],
)
def test_summaries(output: str, found: dict[str, int] | None) -> None:
    assert sanitize.findings(output) == ({"errors": 0, "warnings": 0} if found is None else found)


def test_options_reach_the_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: "/tool")
    line = sanitize.command("racecheck", "test_races", ["--racecheck-memcpy-async=no"])
    tool, _, test = " ".join(line).partition(sys.executable)
    assert tool.startswith("/tool --tool=racecheck ")
    assert "--kernel-regex kns=_sm_" in tool and "--racecheck-memcpy-async=no" in tool
    assert "--kernel-regex" not in sanitize.command("initcheck", "test_small")
    assert test.endswith(f"{sanitize.TESTS} -k test_races")


@pytest.mark.parametrize(
    ("status", "output", "outcome"),
    [(0, CLEAN, "passed"), (99, RACES, "failed"), (1, CLEAN, "failed"), (-11, "", "crashed")],
)
def test_a_row_per_process(
    status: int, output: str, outcome: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for the process writes the tests' results and says something."""
    path = tmp_path / "out.jsonl"

    def process(line: list[str], environment: dict[str, str]) -> tuple[int, str]:
        rows = records.Records(Path(environment["CUTE_ATTN_TEST_RESULTS"]), {"gpu": "x"})
        rows.add("G", line[-1], outcome="passed")
        return status, output

    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: "/tool")
    monkeypatch.setattr(sanitize, "run", process)
    monkeypatch.setattr(sys, "argv", ["sanitize", "--tool", "racecheck", "--out", str(path)])
    assert sanitize.main() == (0 if outcome == "passed" else 1)
    first, *rows = list[dict[str, Any]](records.read(path))
    assert first["gpu"] == "x" and "command" in first
    assert [row["cfg"].partition("-k ")[2] for row in rows] == [
        f"'{match}'" for match in sanitize.MATCHES["racecheck"]
    ]
    assert all(row["outcome"] == outcome and row["tests"] == 1 for row in rows)


def test_without_the_tool_it_says_where_it_comes_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sanitize, "find_sanitizer", lambda: None)
    with pytest.raises(FileNotFoundError, match="CUDA toolkits"):
        sanitize.command("memcheck", "x")
