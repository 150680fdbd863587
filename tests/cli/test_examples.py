"""The examples run, and say what they should."""

from __future__ import annotations

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

from cute_attn.codegen.registered import REGISTERED

pytestmark = pytest.mark.usefixtures("kernel_cache")
EXAMPLES = Path(__file__).parents[2] / "examples"


def output_of(name: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What an example prints; a non-zero exit fails the test."""
    try:
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    except SystemExit as exit:
        assert exit.code in (None, 0)
    return capsys.readouterr().out


def test_quickstart(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("quickstart.py", capsys)
    assert "out (109, 32, 128), lse (109, 32)" in text
    assert float(re.findall(r"error of the last request: (\S+)", text)[0]) < 4e-3


def test_variant(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("variant.py", capsys)
    assert float(re.findall(r"dense softmax (\S+)", text)[0]) < 4e-3
    assert "(kv_idx <= q_idx) && ((kv_idx < sinks) || (kv_idx > q_idx - window))" in text
    assert "return score - lag.times(values.logits_slope);" in text


def test_dual_chunk(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("dual_chunk.py", capsys)
    assert len(re.findall(r"\d+ queries, \d+ keys: error \d\.\de-03", text)) == 3


def test_build_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("build_kernel.py", capsys)
    usual, overridden = re.findall(r"^tile \d+ x (\d+), ", text, re.MULTILINE)
    assert usual != overridden == "32"
    assert text.count("0 bytes spilled") == 2
    assert "{'q': 256}: not possible: tile.q is 256" in text


@pytest.fixture
def _no_templates() -> Iterator[None]:
    """The example registers its own, once a process."""
    REGISTERED.pop("row_per_thread", None)
    yield
    REGISTERED.pop("row_per_thread", None)


@pytest.mark.usefixtures("_no_templates")
def test_own_template(capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of("own_template.py", capsys)
    assert re.search(r"^row_per_thread_bf16_d64_ragged_g4_causal_sinks_sm_90_\w+: \d+ reg", text)


@pytest.mark.gpu
@pytest.mark.usefixtures("_no_templates")
def test_own_template_on_the_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    assert "error against the CPU executor" in output_of("own_template.py", capsys)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["quickstart.py", "variant.py", "dual_chunk.py", "build_kernel.py"]
)
def test_on_the_gpu(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = output_of(name, capsys)
    assert re.search(r"^cuda: |error .* us$", text, re.MULTILINE)
    assert "nothing was launched" not in text
