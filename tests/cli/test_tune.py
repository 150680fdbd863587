"""`cute-attn tune`: compiles without a GPU, refuses in one line what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cute_attn.cli.main import app
from cute_attn.runtime import device_count
from cute_attn.tuning import store


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUTE_ATTN_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("CUTE_ATTN_NO_COMPILE", raising=False)


def run(*words: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["tune", *words])
    return result.exit_code, result.stdout, result.stderr


def test_compile_only_fills_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("--compile-only", "--arch", "sm_90a", "--match", "decode d64 fp16", "--candidates")
    code, text, _ = run(*words, "1", "--json")
    assert code == 0
    first = json.loads(text)
    assert first["steps"] == 2 and first["missing"] == 0 and not first["failed"]
    assert len(list((tmp_path / "cache").rglob("*.cubin"))) >= first["configurations"] >= 2
    # What is carried is found where nothing may be compiled; what is not is said.
    monkeypatch.setenv("CUTE_ATTN_NO_COMPILE", "1")
    code, text, _ = run(*words, "1", "--json")
    assert (code, json.loads(text)) == (0, first)
    code, text, _ = run(*words, "3", "--json")
    assert code == 0 and json.loads(text)["missing"] > 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--compile-only", "--no-compile"), 2, "without --no-compile"),
        (("--arch", "sm_80"), 2, "it takes --compile-only"),
        (("--compile-only", "--arch", "sm_90a", "--match", "nothing"), 1, "match is 'nothing'"),
        (("--seconds", "0"), 2, "--seconds"),
        (("--candidates", "0"), 2, "--candidates"),
        (("--database", "x.json"), 2, "it takes --report"),
        (("--report", "x.png"), 1, "ends in .html"),
        (("--report", "x.html", "--list"), 2, "nothing is measured"),
        (("--report", "x.html", "--database", "none.json"), 1, "none.json: cannot be read"),
    ],
)
def test_bad_input(words: tuple[str, ...], code: int, message: str) -> None:
    got, _, errors = run(*words)
    assert got == code and message in errors
    assert "Traceback" not in errors


@pytest.mark.skipif(device_count() > 0, reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    code, text, errors = run("--seconds", "5")
    assert code == 1 and text == ""
    assert errors.count("\n") == 1 and "there is none" in errors


def test_report_of_a_database(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="extra `plot`")
    path, page = tmp_path / "db.json", tmp_path / "x.html"
    store(path, [], name="NVIDIA H200", sms=132, arch="sm_90a")
    code, text, _ = run("--report", str(page), "--database", str(path))
    assert (code, text) == (0, f"report: {page}\n")
    assert "Tuning of NVIDIA H200" in page.read_text()
    code, _, errors = run("--report", str(tmp_path / "no" / "x.html"), "--database", str(path))
    assert code == 2 and "No such file" in errors


def test_list_names_steps() -> None:
    code, text, _ = run("--list", "--match", "decode")
    assert code == 0
    lines = text.splitlines()
    assert len(lines) > 5 and all(line.startswith("decode") for line in lines)
