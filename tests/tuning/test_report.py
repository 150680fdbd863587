"""The report: facts by the plan's and the tiles' own arithmetic, words, heat maps, the page."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cute_attn.api.tune_facts import Facts, facts_of
from cute_attn.api.tune_landscape import draw, groups, names
from cute_attn.api.tune_plan import PlannedStep, problem_of
from cute_attn.api.tune_report import check_report, page, write_report
from cute_attn.api.tune_words import explanation, fact_rows, outcome, reasons
from cute_attn.api.tuned import class_of
from cute_attn.codegen.spec import Tile
from cute_attn.tuning import Candidate, Database, Entry, Measured, TuneStep
from cute_attn.variants import full

pytest.importorskip("matplotlib", reason="extra `plot`")

DENSE = TuneStep("prompts 4 x 600", (600,) * 4, (600,) * 4, 8, 4, 64, variant=full())
LONG = replace(DENSE, name="prompts 2 x 900", q_lens=(900,) * 2, kv_lens=(900,) * 2)
WIDE = Candidate("hopper_tile", Tile(192, 128, 2, 512, 1, 32, 160, q_stages=2))
TABLE = PlannedStep(DENSE, "sm_90a", 132).default
OLD = Candidate("hopper_tile", Tile(192, 8, 2, 512, 1, 32, 160))  # of another version
OTHER = Candidate("ampere_tile", Tile(q=128, kv=64, stages=2, threads=128))


def entry(step: TuneStep = DENSE, times: tuple[float, ...] = (50.0, 40.0, 70.0)) -> Entry:
    """The table's kernel, the one that is taken if it is faster, another one."""
    pairs = zip((TABLE, WIDE, OTHER), times, strict=False)
    measured = tuple(Measured(c, us, 0.25, 2 * us) for c, us in pairs)
    winner = 1 if len(times) > 1 and times[1] < times[0] else None
    kernels = class_of(problem_of(step, "sm_90a"))
    return Entry(step.name, kernels, step.key(132), step.packed_rows, measured, winner, {})


def database(*entries: Entry) -> Database:
    return Database("NVIDIA H200", 132, "sm_90a", {}).with_entries(entries)


def test_facts_are_those_of_the_equations() -> None:
    facts = facts_of(PlannedStep(DENSE, "sm_90a", 132), WIDE)
    # 1,200 packed rows of a request and KV head are seven tiles of 192.
    assert facts.tiles == 4 * 4 * 7
    assert facts.rounds == pytest.approx(112 / 132)
    assert facts.padding == pytest.approx(1 - 1200 / 1344)
    # 600 keys are five blocks of 128, for each tile, cut or not.
    assert facts.scores == 112 * 192 * 640
    assert facts.kv_steps == pytest.approx(112 * 5 / 132)
    assert facts.kv_bytes == 112 * 600 * 2 * 64 * 2  # what is there
    assert (facts.blocks_per_sm, facts.warps_per_sm) == (1, 16)
    assert facts.in_flight == 128 * 2 * 64 * 2  # one stage is read, the other is on its way
    two_q, ring = 2 * 192 * 64 * 2, 2 * 2 * 128 * 64 * 2
    assert two_q + ring < facts.smem_bytes < two_q + ring + 4096


def test_reasons_are_sorted_by_what_they_speak_for() -> None:
    base = Facts(100, 0, 1.0, 0.1, 0.1, 10**6, 50.0, 10**7, 10**5, 1, 12, 64 << 10)
    assert reasons(base, base) == ([], [])
    better = replace(base, padding=0.02, in_flight=96 << 10, kv_bytes=2 * 10**7)
    pro, contra = reasons(better, base)
    assert pro == [
        "rows that are padding 2.0 % instead of 10.0 %",
        "K and V in flight per SM 96 KiB instead of 64 KiB",
    ]
    assert contra == ["K and V loaded 19 MiB instead of 9,766 KiB"]
    assert reasons(base, better) == (
        ["K and V loaded 9,766 KiB instead of 19 MiB"],
        [
            "rows that are padding 10.0 % instead of 2.0 %",
            "K and V in flight per SM 64 KiB instead of 96 KiB",
        ],
    )
    assert reasons(replace(base, scores=10**6 + 10**4), base) == ([], [])  # one per cent
    text = explanation(entry(), better, base)
    assert "For it: rows" in text and "Against it: K and V loaded" in text
    assert "expected 1.250 times, 1.250 were measured" in text
    assert "Nothing that the equations know" in explanation(entry(), base, base)
    assert ("thread blocks per SM", "1", "1") in fact_rows(base, better)


def test_outcomes_in_words() -> None:
    won = outcome(entry())
    assert "40.0 ± 0.2 µs, 1.250 times as fast as the table's" in won
    assert "50.0 ± 0.2 µs" in won and WIDE.label in won
    assert "60.0 % more." in outcome(entry(times=(50.0, 80.0, 125.0)))
    near = replace(entry(times=(50.0, 49.8)), winner=None)
    assert "0.4 % less: a winner must gain more" in outcome(near)
    assert "Nothing was left" in outcome(entry(times=(50.0,)))


def test_heat_maps_show_every_candidate() -> None:
    both = [entry(), entry(LONG, (60.0, 66.0))]
    (group,) = groups(both)
    assert {e.step for e in group} == {DENSE.name, LONG.name}
    assert names(group)[0] == "prompts" and names(group[:1]) == (group[0].step, [""])
    (axes,) = draw(group).axes
    cells = [text.get_text() for text in axes.texts]
    assert len(cells) == 5
    assert [c for c in cells if c.startswith("★")] == ["★ 40.0 ± 0.2  (0.80)"]
    tables = [c for c in cells if c.startswith("▪")]
    assert sorted(tables) == ["▪ 50.0 ± 0.2  (1.00)", "▪ 60.0 ± 0.2  (1.00)"]
    labels = [label.get_text() for label in axes.get_yticklabels()]
    # In the mean of the steps that have it: 0.95, 1, 1.4.
    assert labels == [WIDE.label, TABLE.label, OTHER.label]
    decode = TuneStep("decode", (1,) * 8, (512,) * 8, 8, 4, 64, variant=full())
    assert len(groups([*both, entry(decode)])) == 2


def test_the_page_holds_pictures_and_words(tmp_path: Path) -> None:
    known = database(entry(), entry(LONG, (60.0, 66.0)))
    path = write_report(known, tmp_path / "x.html", steps=[DENSE, LONG])
    text = path.read_text()
    assert text == page(known, [DENSE, LONG])  # the same bytes again
    assert text.count("<svg") == 1 and "<?xml" not in text
    assert "1 of 2 steps take another kernel" in text and known.digest in text
    assert "For it: " in text and "what plan and equations say" in text
    assert not re.search(r"(src|href)=\"http", text.replace("http://www.w3.org", ""))
    # Of steps that it is not told, or of others by this name, there is no plan.
    for steps in (None, [], [replace(LONG, name=DENSE.name)]):
        assert "was not told the lengths" in page(known, steps)
        assert "For it: " not in page(known, steps)
    table, wide, _ = entry().measured
    gone = replace(entry(), measured=(table, replace(wide, candidate=OLD)))
    assert "no longer has one of the two" in page(database(gone), [DENSE])
    assert "0 of 0 steps" in page(database())


def test_names_of_steps_are_escaped() -> None:
    text = page(database(replace(entry(), step="<b>")))
    assert "<b>" not in text.replace("<b>▪</b>", "").replace("<b>★</b>", "")


def test_bad_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"x\.png.*ends in \.html"):
        check_report(tmp_path / "x.png")
    with pytest.raises(OSError):
        write_report(database(entry()), tmp_path / "none" / "x.html")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ModuleNotFoundError, match="pip install matplotlib"):
        check_report(tmp_path / "x.html")
