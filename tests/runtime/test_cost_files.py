"""Where files of constants are looked for, and how they are written."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cute_attn.runtime import cost_files

NAME = "NVIDIA H200 (a test)"


@pytest.fixture(autouse=True)
def _own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CUTE_ATTN_COST_FILE", raising=False)


def test_the_users_file_is_found_when_it_is_there(tmp_path: Path) -> None:
    path = cost_files.default_path(NAME, 132)
    assert tmp_path in path.parents and path.name == "nvidia-h200-a-test-132-sms.json"
    assert cost_files.default_path(NAME, 131) != path
    assert cost_files.find(NAME, 132) is None
    cost_files.write(path, "{}")
    assert cost_files.find(NAME, 132) == path
    assert cost_files.find(NAME, 131) is None


def test_named_files_come_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost_files.write(cost_files.default_path(NAME, 132), "{}")
    monkeypatch.setenv("CUTE_ATTN_COST_FILE", str(tmp_path / "not there.json"))
    assert cost_files.find(NAME, 132) == tmp_path / "not there.json", "it is not looked for"
    assert cost_files.find(NAME, 132, "given.json") == Path("given.json")


def test_writing_replaces_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "deep" / "costs.json"
    cost_files.write(path, "old")
    before = path.open()
    cost_files.write(path, "new text")
    assert path.read_text() == "new text"
    assert before.read() == "old", "whoever reads has the whole of one of them"
    before.close()

    def fails(self: Path, target: Path) -> Path:
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", fails)
    with pytest.raises(OSError, match="disk full"):
        cost_files.write(path, "newer")
    assert path.read_text() == "new text"
    assert os.listdir(path.parent) == ["costs.json"], "nothing is left behind"
