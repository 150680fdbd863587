"""Makes the report: `python -m perf.report`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from perf.joining import PEERS
from perf.records import RESULTS
from perf.report import page, summary
from perf.report.archive import RecordError, read_archive

DESCRIPTION = """One self-contained HTML page from records: goals, rooflines, peers, plans,
published results, tests. Needs no GPU and no network."""
EXAMPLES = """examples:
  python -m perf.report                                 report.html from perf/results
  python -m perf.report --results /tmp/mine --out mine.html
  python -m perf.report --json | jq '.goals[] | select(.newest and (.reached | not))'
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m perf.report",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder of records (default: perf/results)"
    )
    parser.add_argument("--peers", type=Path, default=PEERS, help="default: perf/peers/h200.jsonl")
    parser.add_argument(
        "--out", type=Path, default=Path("report.html"), help="the page (default: report.html)"
    )
    parser.add_argument(
        "--json", action="store_true", help="print goals and records as JSON, write no page"
    )
    options = parser.parse_args()
    try:
        archive = read_archive(options.results, options.peers)
        if options.json:
            print(json.dumps(summary.as_json(archive), indent=2))
            return 0
        text = page.render(archive)
        options.out.write_text(text, encoding="utf-8")
    except (RecordError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{options.out}: {len(text) / 1000:.0f} kB, {len(archive.records)} records")
    return 0


if __name__ == "__main__":
    sys.exit(main())
