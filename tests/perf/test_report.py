"""The report: the page's numbers are those of the records, each has its command, and what is no
record is refused."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from perf import compare, records
from perf.joining import PEERS, join
from perf.records import RESULTS
from perf.report import __main__ as command
from perf.report import page, svg
from perf.report.archive import RecordError, read_archive, read_record
from perf.report.blocks import Figure, Gap, Table

HEAD = {
    "gpu": "NVIDIA H200",
    "commit": "abc1234",
    "command": "python3 -m perf.bench",
    "date": "2026",
}


class Page(HTMLParser):
    """The blocks of a page: section, title, cells of tables by row, commands, and what it loads."""

    VOID = ("meta", "br", "link", "img", "input", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.blocks: list[dict[str, Any]] = []
        self.sections: list[str] = []
        self.loads: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        assert not self.open, "every element is closed"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        facts = dict(attrs)
        self.loads += [str(v) for k, v in attrs if k in ("src", "xlink:href") or tag == "link"]
        self.loads += [v for k, v in attrs if k == "href" and v and not v.startswith("#")]
        if tag not in self.VOID:
            self.open.append(tag)
        classes = (facts.get("class") or "").split()
        if tag == "section":
            self.sections.append(str(facts["id"]))
        if "block" in classes:
            block = {
                "section": self.sections[-1],
                "title": "",
                "rows": [],
                "commands": [],
                "svg": 0,
            }
            self.blocks.append(block)
        if not self.blocks:
            return
        block = self.blocks[-1]
        if tag == "tr":
            block["rows"].append([])
        elif tag in ("td", "th"):
            block["rows"][-1].append("")
        elif "command" in classes:
            block["commands"].append("")
        elif "chart" in classes:
            block["svg"] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.blocks or not self.open:
            return
        block, tag = self.blocks[-1], self.open[-1]
        if tag == "h3":
            block["title"] += data
        elif tag in ("td", "th"):
            block["rows"][-1][-1] += data
        elif tag == "code" and block["commands"]:
            block["commands"][-1] += data

    def block(self, begin: str) -> dict[str, Any]:
        (found,) = (block for block in self.blocks if block["title"].startswith(begin))
        return found


@pytest.fixture(scope="module")
def made() -> tuple[Any, Any, str]:
    """Archive, sections and text of the page of the committed records."""
    archive = read_archive(RESULTS, PEERS)
    sections = page.sections(archive)
    return archive, sections, page.render(archive, sections)


def test_every_part_has_its_command(made: tuple[Any, Any, str]) -> None:
    _, sections, text = made
    parsed = Page(text)
    ids = [section.id for section in sections]
    assert parsed.sections == ids
    assert set(ids) == {"goals", "rooflines", "peers", "plans", "composable", "published", "tests"}
    for block in parsed.blocks:
        if block["rows"] or block["svg"]:
            assert block["commands"], block["title"]
            for text_of in block["commands"]:
                assert re.match(r"python3? -m (perf|tests|pytest)", text_of), text_of
    assert parsed.loads == [], "nothing is loaded from elsewhere"
    assert "<script" not in text and "@import" not in text and "url(" not in text
    assert len(text) < 600_000
    for section in sections:
        for block in section.blocks:
            assert isinstance(block, Gap) or block.sources


def test_no_place_of_a_machine_is_shown(made: tuple[Any, Any, str]) -> None:
    archive, _, text = made
    for record in archive.records:
        for word in str(record.head["command"]).split():
            if word.startswith("/"):
                assert word not in text


def test_means_and_worst_cells_are_those_of_the_records(made: tuple[Any, Any, str]) -> None:
    archive, _, text = made
    head, *rows = Page(text).block("Geometric mean and worst")["rows"]
    sections = {row[0].split()[0] for row in rows}
    assert head[0] == "section" and sections >= {"A", "A16", "B", "C", "K", "M", "Q", "R", "T", "V"}
    for title, count, mean, worst, case, *_, name in rows:
        path = RESULTS / name
        cells = join(list(records.read(path)), archive.peers)
        own = [c for c in cells if c.row["sec"] == title.split()[0] and c.ratio]
        ratios = {c.name: c.ratio for c in own if c.ratio}
        assert int(count) == len(ratios)
        product = 1.0
        for ratio in ratios.values():
            product *= ratio ** (1 / len(ratios))
        assert mean == f"{product:.2f}" and worst == f"{min(ratios.values()):.2f}"
        assert ratios[case] == min(ratios.values())


def test_goals_are_those_that_compare_prints(made: tuple[Any, Any, str]) -> None:
    _, _, text = made
    parsed = Page(text)
    parts = ["Goals that are missed", "Goals that are reached"]
    parts += [b["title"] for b in parsed.blocks if b["title"].startswith("The same goals by older")]
    shown = {
        (row[4], row[0]): (row[1][2:], row[2], row[4])
        for part in parts
        for row in parsed.block(part)["rows"][1:]
    }
    peers = list(records.read(PEERS))
    expected = 0
    for path in RESULTS.rglob("*.jsonl"):
        if re.match(
            r"(prefill|decode|steps|variants|launch|plan|compile|tuning|composable)-(h200|cpu)-",
            path.name,
        ):
            name = path.relative_to(RESULTS).as_posix()
            for goal in compare.all_goals(list(records.read(path)), peers):
                word, got, record = shown[name, goal.what]
                assert record == name and got == f"{goal.got:.4g}"
                assert word == ("reached" if goal.got >= goal.least else "missed")
                expected += 1
    assert expected == sum(len(parsed.block(part)["rows"]) - 1 for part in parts) > 50


def test_rows_of_figures(made: tuple[Any, Any, str]) -> None:
    archive, _, text = made
    block = Page(text).block("Decode over bytes read")
    record = archive.newest("C")
    ours = {r["cfg"]: r for r in record.of("C") if r["peer"] == "cute_attn"}
    rows = block["rows"][1:]
    assert block["svg"] == 6 and len(rows) == len(ours) == 102
    for name, _, rate, *_ in rows:
        assert rate == f"{ours[name]['gbps_graph']:,.0f}"


def test_gpu_tests_are_counted(made: tuple[Any, Any, str]) -> None:
    archive, _, text = made
    (record,) = archive.with_section("G")
    rows = Page(text).block("GPU tests")["rows"]
    outcomes = [row["outcome"] for row in record.rows]
    assert rows[-1][:2] == ["all", str(outcomes.count(rows[0][1]))]


@pytest.fixture
def run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Runs the command on tmp_path; exit code, output and errors."""

    def call(*options: str) -> tuple[int, str, str]:
        arguments = ["report", "--results", str(tmp_path), "--out", str(tmp_path / "out.html")]
        monkeypatch.setattr(sys, "argv", [*arguments, *options])
        code = command.main()
        return code, *capsys.readouterr()

    return call


def write(path: Path, *rows: Any) -> None:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([HEAD, {"sec": "A", "cfg": "x", "us": 1.0}, "{oops"], r"a\.jsonl:3: not JSON"),
        (
            [HEAD, {"sec": "A", "cfg": "x", "us": "fast"}],
            r"a\.jsonl:2: us is 'fast'; it takes a num",
        ),
        ([HEAD, {"sec": "A", "cfg": "x", "us": True}], r"a\.jsonl:2: us is True"),
        ([HEAD, {"sec": "A", "us": 1.0}], r"a\.jsonl:2: cfg is None; it takes text"),
        ([HEAD, {"cfg": "x"}], r"a\.jsonl:2: sec is None"),
        ([HEAD, {"sec": "C", "cfg": "x", "us": 1.0}], r"a\.jsonl:2: it lacks us_graph"),
        ([HEAD, [1]], r"a\.jsonl:2: list, where an object belongs"),
        ([{**HEAD, "commit": None}], r"a\.jsonl:1: the first row lacks commit"),
        ([""], r"a\.jsonl: empty"),
    ],
)
def test_garbled_records_are_refused(
    tmp_path: Path, run: Callable[..., tuple[int, str, str]], rows: list[Any], message: str
) -> None:
    write(tmp_path / "a.jsonl", *rows)
    code, _, errors = run()
    assert code == 1 and re.match(f"error: {message}", errors) and errors.count("\n") == 1
    assert not (tmp_path / "out.html").exists()


def test_missing_places_are_refused(
    run: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    assert "it holds no records" in run()[2]
    assert "no such folder" in run("--results", str(tmp_path / "none"))[2]
    write(tmp_path / "a.jsonl", HEAD)
    assert "--peers is" in run("--peers", str(tmp_path / "none"))[2]
    assert run("--out", str(tmp_path / "none" / "x.html"))[0] == 1


def test_what_no_record_says_is_a_gap(tmp_path: Path, run: Callable[..., Any]) -> None:
    write(tmp_path / "some-h200-2026-11-30.jsonl", HEAD)
    code, output, _ = run()
    assert code == 0 and "out.html" in output
    parsed = Page((tmp_path / "out.html").read_text())
    sections = page.sections(read_archive(tmp_path, PEERS))
    for section in sections:
        if section.id != "goals":
            assert all(isinstance(block, Gap) for block in section.blocks)
    assert parsed.block("Prefill over sequence length")["commands"] == [
        "python -m perf.bench_prefill --section A"
    ]


def test_records_of_kernels_that_are_no_more(tmp_path: Path) -> None:
    row = {"sec": "T", "cfg": "azure-chat-500", "peer": "cute_attn", "us_graph": 1.0, "err": 0.0}
    write(tmp_path / "steps-h200-2026-11-30.jsonl", HEAD, {**row, "kernel": "gone"})
    (plans,) = (s for s in page.sections(read_archive(tmp_path, PEERS)) if s.id == "plans")
    (gap,) = (b for b in plans.blocks if b.title.startswith("Predicted"))
    assert isinstance(gap, Gap) and "the record has gone" in gap.text


def test_tuning(tmp_path: Path) -> None:
    row = {
        "sec": "U",
        "cfg": "d64",
        "peer": "untuned",
        "us_graph": 20.0,
        "err": 0.0,
        "speedup": 1.25,
    }
    rows = [row, {**row, "peer": "tuned", "us_graph": 16.0}]
    rows.append({**row, "cfg": "wrong", "peer": "tuned", "err": 1.0})
    write(tmp_path / "tuning-h200-2026-12-01.jsonl", HEAD, *rows)
    goals, *_ = sections = page.sections(read_archive(tmp_path, PEERS))
    (plans,) = (s for s in sections if s.id == "plans")
    (table,) = (b for b in plans.blocks if b.title.startswith("Tuned"))
    assert isinstance(table, Table) and list(table.rows) == [["d64", "20.0", "16.0", "1.250", ""]]
    (reached,) = (b for b in goals.blocks if b.title == "Goals that are reached")
    assert [r[0] for r in reached.rows] == ["U: mean of the untuned time", "U: worst held-out step"]


def test_json(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    rows = [
        {"sec": "L", "cfg": f"run, out given: {name}", "us": us}
        for name, us in (("a", 8.0), ("b", 12.5))
    ]
    write(tmp_path / "launch-h200-2026-11-30.jsonl", HEAD, *rows)
    code, output, _ = run("--json")
    found = json.loads(output)
    assert code == 0 and not (tmp_path / "out.html").exists()
    assert [r["record"] for r in found["records"]] == ["launch-h200-2026-11-30.jsonl"]
    (goal,) = found["goals"]
    assert goal["got"] == pytest.approx(0.8) and not goal["reached"] and "(b)" in goal["goal"]


def test_names_of_benchmarks(tmp_path: Path) -> None:
    names = {
        "steps-batch-invariant-h200-2026-11-30.jsonl": "steps-batch-invariant",
        "plan-cpu-2026-12-01.jsonl": "plan",
        "mine.jsonl": "mine",
    }
    for name, bench in names.items():
        gpu = "cpu" if "cpu" in name else "NVIDIA H200"
        write(
            tmp_path / name, {**HEAD, "gpu": gpu, "command": "/a/b/python3 -m pytest /x/tests/gpu"}
        )
        record = read_record(tmp_path / name, name)
        assert record.bench == bench and record.command == "python3 -m pytest tests/gpu"


def test_numbers_are_aligned_and_text_is_escaped() -> None:
    table = Table("t", ("a", "b", "c"), [["x", "1,234.5", ""], ["1", "-3 %", ""]], [])
    assert table.numeric == [False, True, False]
    series = svg.Series("<b>", [(1.0, 2.0)], 0)
    axis = svg.Axis("x", 1.0, 10.0, [(1.0, "1")])
    assert "&lt;b&gt;" in svg.lines("a & b", [series], axis, "y", 3.0, None)
    figure = Figure("f", [], [], [])
    assert figure.table is None


@pytest.mark.parametrize(
    ("high", "step"), [(4.0, 1.0), (860.0, 200.0), (4800.0, 1000.0), (0.3, 0.05)]
)
def test_ticks(high: float, step: float) -> None:
    assert svg.nice_step(high) == pytest.approx(step)


def test_peers_must_be_right_too(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", HEAD)
    write(tmp_path / "p.txt", {"sec": "A", "cfg": "x", "us": 1.0}, {"sec": "A"})
    with pytest.raises(RecordError, match=r"p\.txt:2: cfg"):
        read_archive(tmp_path, tmp_path / "p.txt")


def test_levels_beside_one_format(made: tuple[Any, Any, str]) -> None:
    """The picture's points and the tables are the record's ratios."""
    archive, sections, text = made
    (composable,) = (s for s in sections if s.id == "composable")
    record = next(r for r in archive.records if r.of("PG") and "predicted" not in r.name)
    times = {(r["cfg"], r["peer"]): r["us_graph"] for r in record.of("PG", "SP", "MP")}
    figure, *tables = composable.blocks
    assert isinstance(figure, Figure) and figure.table is not None
    rows = [row for block in (figure.table, *tables) for row in block.rows]
    assert len(rows) == len({cfg for cfg, _ in times})
    for cfg, *shown in rows:
        flat, auto, levels = (times[cfg, way] for way in ("flat", "auto", "levels"))
        assert shown[:5] == [
            f"{flat:.1f}", f"{auto:.1f}", f"{levels:.1f}", f"{flat / auto:.2f}",
            f"{flat / levels:.2f}",
        ]  # fmt: skip
    assert text.count("mooncake, prompt of 9924") >= 8  # a dot for each number of samples
