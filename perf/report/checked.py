"""What ran and was right: the GPU tests' record, and those of the sanitizer."""

from __future__ import annotations

from collections import Counter

from perf.report.archive import Archive
from perf.report.blocks import Block, Gap, Section, Source, Table

_MOST_FAILURES = 50


def section(archive: Archive) -> Section:
    """Tests and sanitizers."""
    text = (
        "Every kernel is held against a dense float64 softmax; poisoned memory, repeats, random"
        " delays."
    )
    blocks = [*_tests(archive), _sanitizers(archive), _peers_own(archive)]
    return Section("tests", "Tests on the GPU", text, blocks)


def _tests(archive: Archive) -> list[Block]:
    records = archive.with_section("G")
    if not records:
        return [Gap("GPU tests", "no record holds section G", "python -m tests.gpu.run")]
    record, rows = records[0], []
    files: dict[str, Counter[str]] = {}
    worst: dict[str, tuple[float, str]] = {}
    for row in record.of("G"):
        name = str(row.get("test", "")).partition("::")[0].rpartition("/")[2]
        files.setdefault(name, Counter())[str(row.get("outcome", "unknown"))] += 1
        err = row.get("err")
        if isinstance(err, float):
            worst[name] = max(worst.get(name, (0.0, "")), (err, row["cfg"]))
    outcomes = list(dict.fromkeys(outcome for own in files.values() for outcome in own))
    for name, own in sorted(files.items()):
        err = worst.get(name)
        error = [f"{err[0]:.1e}", err[1]] if err and err[0] > 0 else ["", ""]
        rows.append([name, *(str(own[o]) for o in outcomes), *error])
    total = sum((Counter(own) for own in files.values()), Counter())
    rows.append(["all", *(str(total[o]) for o in outcomes), "", ""])
    said = ", ".join(f"{total[o]:,} {o}" for o in outcomes)
    text = (
        f"{said}, commit {record.head['commit']}. Errors are Frobenius-relative where a test notes"
        " one; outputs are 16-bit. Tests of damaged inputs and of capacities note none."
    )
    head = ("file", *outcomes, "largest error", "case")
    blocks: list[Block] = [Table("GPU tests", head, rows, [Source.of(record)], text)]
    failed = [row for row in record.of("G") if row.get("outcome") not in ("passed", "skipped")]
    if failed:
        lines = [[row["cfg"], str(row.get("test", "")), str(row.get("outcome"))] for row in failed]
        title = f"What did not pass ({len(failed)})"
        listed = lines[:_MOST_FAILURES]
        blocks.append(Table(title, ("case", "test", "outcome"), listed, [Source.of(record)]))
    return blocks


def _sanitizers(archive: Archive) -> Block:
    records = archive.with_section("S")
    if not records:
        return Gap("compute-sanitizer", "no record holds section S", "python -m perf.sanitize")
    rows = []
    for record in sorted(records, key=lambda record: record.name):
        for row in record.of("S"):
            word = "✓ clean" if row.get("outcome") == "passed" else f"✗ {row.get('outcome')}"
            tests = row["cfg"].partition(" -k ")[2].strip("'")
            counts = [str(row.get(k, "")) for k in ("tests", "errors", "warnings")]
            rows.append([record.bench, word, tests, record.head["commit"], *counts])
    text = (
        "Reports of racecheck that are understood, and one that is open, are explained in"
        " perf/README.md under “Sanitizer”; nothing is filtered out. Mind the commits: what"
        " is newer has not run under these tools."
    )
    head = ("tool", "outcome", "tests named", "commit", "tests", "errors", "warnings")
    return Table("compute-sanitizer", head, rows, [Source.of(r) for r in records], text)


def _peers_own(archive: Archive) -> Block:
    """FlashInfer's tests against its names here."""
    title, command = "FlashInfer's own attention tests", "python -m perf.peer_suite CHECKOUT"
    records = archive.with_section("FT")
    if not records:
        return Gap(title, "no record holds section FT", command)
    record = records[0]
    outcomes = ("passed", "failed", "unsupported", "skipped")
    rows = []
    for row in record.of("FT"):
        ran, scope = row["ran"], row["in_scope"]
        own = f"{100 * row['in_scope_passed'] / scope:.1f} %" if scope else ""
        raw = f"{100 * row.get('passed', 0) / ran:.1f} %" if ran else "not reached"
        rows.append([row["cfg"], own, raw, *(str(row.get(name, 0)) for name in outcomes)])
    text = (
        f"FlashInfer {record.head['suite']} with cute_attn.flashinfer in its place; at most"
        f" {record.head['sample']} cases of each test function. In scope are fp16 and bf16 with"
        " head_dim 64, 128, 256 or (192, 128); what is not supported counts as failed. Most of"
        " these tests compare two calls of the API, ours then, the others torch references."
    )
    head = ("file", "passed, in scope", "passed, of all", *outcomes)
    return Table(title, head, rows, [Source.of(record)], text)
