"""Lengths of engines become the requests that Python makes of them; what is wrong is named."""

from __future__ import annotations

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from cute_attn import BlockTableKV, PagedKV, RaggedKV, causal
from cute_attn.api.step import make_step
from cute_attn.codegen.source import INCLUDE_DIR as KERNEL_HEADERS
from cute_attn.export.write import INCLUDE_DIR
from cute_attn.formats import KVFormat
from tests.export.compilers import CXX, compile_text, needs_cxx

pytestmark = needs_cxx


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("requests") / "requests"
    source = Path(__file__).parent / "requests.cpp"
    include = (f"-I{INCLUDE_DIR}", f"-I{KERNEL_HEADERS}")
    compile_text(CXX, "-std=c++17", *include, source, "-o", made)
    return made


def answers(program: Path, lines: list[str]) -> list[str]:
    text = "\n".join(lines) + "\n"
    result = subprocess.run([program], input=text, capture_output=True, text=True, check=True)
    return [line.strip() for line in result.stdout.splitlines()]


def numbers(*lists: object) -> str:
    return " ".join(str(x) for values in lists for x in np.asarray(values).tolist())


def expected(qo_indptr: list[int], kv: KVFormat) -> str:
    requests = make_step(qo_indptr, kv, causal(), None, torch.device("cpu")).requests
    rows = requests.table[:5].T
    return numbers(*(np.append(row, i) for i, row in enumerate(rows)))


def test_all_formats(program: Path) -> None:
    rng = np.random.default_rng(3)
    lines, wanted = [], []
    for _ in range(100):
        count, page = int(rng.integers(1, 6)), int(rng.choice([1, 16, 17]))
        qo_indptr = np.append(0, np.cumsum(rng.integers(0, 9, count))).tolist()
        lengths = rng.integers(0, 200, count)
        pages = -(-lengths // page)
        indptr = np.append(0, np.cumsum(pages))
        last = lengths - np.maximum(pages - 1, 0) * page
        head = [page, int(indptr[-1]), 0, count]
        lines.append(f"paged {numbers(head, qo_indptr, indptr, last)}")
        kv: KVFormat = PagedKV(indptr, np.arange(indptr[-1]), last, page)
        wanted.append(expected(qo_indptr, kv))

        rows = np.append(0, np.cumsum(lengths))
        lines.append(f"ragged {numbers([1, int(rows[-1]), 0, count], qo_indptr, rows)}")
        wanted.append(expected(qo_indptr, RaggedKV(rows)))

        width = int(pages.max(initial=1)) + 2
        tables = np.zeros((count, width), np.int32)
        head = [page, width, width, count]
        lines.append(f"tables {numbers(head, qo_indptr, lengths)}")
        wanted.append(expected(qo_indptr, BlockTableKV(tables, lengths, page)))
    assert answers(program, lines) == wanted


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("paged 16 9 0 2  0 1 2  0 3 2  1 1", "kv_indptr[2] is 2: kv_indptr must not decrease"),
        ("paged 16 9 0 1  0 1  -1 2  1", "kv_indptr[1] is 2: kv_indptr must not decrease, nor be"),
        ("paged 16 4 0 1  0 1  0 5  1", "kv_indptr[1] is 5, but there are 4"),
        ("paged 16 9 0 1  0 1  0 5  17", "kv_last_page_len[0] is 17; it takes 1 .. 16"),
        ("tables 16 2 2 2  0 1 2  3 33", "seq_lens[1] is 33; block tables have room for 0 .. 32"),
        ("ragged 1 2000000000 0 1  0 1  0 1073741824", "request 0 has 2^30 keys or more"),
        ("paged 16 9 0 1  2 1  0 1  1", "qo_indptr[1] is 1: qo_indptr must not decrease"),
    ],
)
def test_what_is_wrong_is_named(program: Path, line: str, words: str) -> None:
    (answer,) = answers(program, [line])
    assert answer.startswith(words)
