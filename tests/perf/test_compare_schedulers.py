"""The comparison with Algorithm 1: its numbers, and that the scheduler's page shows them."""

from __future__ import annotations

import re
import sys

import pytest

from cute_attn.scheduler import plan_batch, plan_items
from perf import compare_schedulers as compare
from perf.cases import Case


def case(*lengths: tuple[int, int]) -> Case:
    """Of (query tokens, keys), 32/8 heads."""
    q_lens, kv_lens = zip(*lengths, strict=True)
    return Case("X", "a case", q_lens, kv_lens, 32, 8, 128, 16, True)


@pytest.mark.parametrize(
    "made", [case((1, 9000), (1, 70)), case((700, 700), (1, 20_000)), case((256, 131_072))]
)
def test_the_cost_model_is_that_of_the_plan(made: Case) -> None:
    setting = compare.Setting.of(made, made.spec("sm_90a"))
    plan = plan_batch(*setting.arguments, cost=setting.cost)
    total = int(plan.block_costs.max()) + plan.merge_cost
    assert compare.model_ns(setting, plan_items(plan)) == total
    row = compare.measure(made)
    assert row.ours.model_ns == total
    assert row.ours.us <= row.ours.wrong_us * 1.2 and row.ours.ideal_us > 0


def test_keys_in_use() -> None:
    """One decode of 8 heads on 396 blocks: all pieces run at once until the shortest one ends."""
    row = compare.measure(case((1, 64 * 1000)))
    whole_mb = 64_000 * 8 * 512 / 1e6
    for result in (row.ours, row.theirs):
        assert 0.9 * whole_mb < result.in_use_mb <= whole_mb


def test_two_launches_are_compared_where_a_batch_makes_two() -> None:
    assert compare.measure(case((1, 9000))).us_beside is None
    assert compare.measure(case((700, 700))).us_beside is None
    row = compare.measure(case((2000, 8000), *[(1, 8000)] * 64))
    assert row.us_beside is not None and 0.5 * row.ours.us < row.us_beside < row.ours.us


def test_table_of_some_cases(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["compare_schedulers", "--match", "azure-chat-500", "--cases"]
    monkeypatch.setattr(sys, "argv", arguments)
    assert compare.main() == 0
    line, header, _, row = capsys.readouterr().out.splitlines()
    assert line.startswith("azure-chat-500") and header.startswith("| workload")
    ours, theirs = map(float, re.findall(r"([\d.]+) us", line))
    assert row.startswith("| real steps (1) |")
    assert float(row.split("|")[2]) == pytest.approx(theirs / ours, abs=0.002)


def test_put_in() -> None:
    page = f"a\n{compare.MARKS[0]}old\n{compare.MARKS[1]}b\n"
    made = compare.put_in(page, "new\n")
    assert made == f"a\n{compare.MARKS[0]}\nnew\n\n{compare.MARKS[1]}b\n"
    assert compare.put_in(made, "new\n") == made
    with pytest.raises(ValueError, match="the page has no lines"):
        compare.put_in("a page", "new\n")


def test_the_page_shows_the_table() -> None:
    """If not: `python -m perf.compare_schedulers --readme`, and read what the page says of it."""
    results = {
        name: [compare.measure(made) for made in cases]
        for name, cases in compare.workloads().items()
    }
    page = compare.README.read_text()
    assert compare.put_in(page, compare.table(results)) == page
