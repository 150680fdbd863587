"""`cute-attn tune`: compiles without a GPU, refuses in one line what it cannot do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cute_attn.cli.main import app
from cute_attn.runtime import device_count
from cute_attn.tuning.files import SHIPPED


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


def test_list_names_steps() -> None:
    code, text, _ = run("--list", "--match", "decode")
    assert code == 0
    lines = text.splitlines()
    assert len(lines) > 5 and all(line.startswith("decode") for line in lines)


def test_a_report_needs_no_gpu(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path, database = tmp_path / "landscape.svg", SHIPPED / "nvidia-h200-132-sms.json"
    code, text, _ = run("--report", str(path), "--database", str(database))
    assert code == 0 and path.read_text().startswith("<?xml")
    assert "1.147 x with ampere_decode 8x64x2 128t b4" in text
    code, _, error = run("--report", str(tmp_path / "a.txt"), "--database", str(database))
    assert code == 1 and "Format 'txt' is not supported" in error
    code, _, error = run("--report", str(path), "--database", str(tmp_path / "none.json"))
    assert code == 1 and "none.json: cannot be read" in error


@pytest.mark.skipif(device_count() > 0, reason="there is a GPU")
def test_a_report_of_no_gpu_asks_for_a_database(tmp_path: Path) -> None:
    code, _, error = run("--report", str(tmp_path / "landscape.svg"))
    assert code == 1 and "--database" in error
