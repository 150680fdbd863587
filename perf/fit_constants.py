"""Fits the constants of `cute_attn.scheduler.constants` to records; no GPU.

    python -m perf.fit_constants [RESULTS.jsonl ...]

Default: the records of an H200 in perf/results. Section T is never fitted: its real steps say what
predictions are worth (tests/perf/test_predictions.py).
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cute_attn.api.launches import measured_launch
from cute_attn.scheduler import BUILT_IN, H200, Measurement, fit_constants
from perf.cases import Case, all_cases
from perf.cases.case import GRAPH_SECTIONS
from perf.records import RESULTS, Row, read

HELD_OUT = "T"
"""Never fitted."""
LONG_US = 1000.0
"""From which a case shows its kernel's clock under lasting load."""


def default_records() -> list[Path]:
    """The committed records of an H200 that hold times of launches."""
    names = ("decode-h200", "steps-h200", "prefill-h200", "prefill-ampere-h200")
    return sorted(path for path in RESULTS.glob("*.jsonl") if path.name.startswith(names))


def measured(paths: Iterable[Path], sections: str | None = None) -> list[Measurement]:
    """Rows of records as measurements of an H200.

    Args:
        paths: records of bench_prefill, bench_decode, bench_steps.
        sections: only these, e.g. "CQ"; default: all.
    """
    return measured_rows([row for path in paths for row in read(path)], sections)


def measured_rows(rows: Iterable[Row], sections: str | None = None) -> list[Measurement]:
    """The same of rows that are read already.

    Raises:
        ValueError: a row is of a kernel that its case no longer takes.
    """
    cases = {(case.sec, case.cfg): case for case in all_cases()}
    found: list[Measurement] = []
    clocks: list[float | None] = []
    for row in rows:
        case = cases.get((row.get("sec", ""), row.get("cfg", "")))
        if case is None or row.get("peer") != "cute_attn" or case.sec not in (sections or case.sec):
            continue
        found.append(_measurement(case, row))
        clocks.append(row.get("sm_mhz"))
    return _with_clocks(found, clocks)


def _measurement(case: Case, row: Row) -> Measurement:
    """A row, with the plans of its launches."""
    kernel = row["kernel"]
    schedule = "ampere_tile" if kernel.startswith("ampere_tile") else None
    parts = case.parts("sm_90a", schedule)
    if parts[0].spec.name != kernel:
        raise ValueError(
            f"{case.sec} {case.cfg}: the record has {kernel}, now {parts[0].spec.name}"
        )
    launches = tuple(measured_launch(part.plan(), part.spec) for part in parts)
    us = row["us_graph" if case.sec in GRAPH_SECTIONS else "us"]
    return Measurement(f"{case.sec} {case.cfg}", us, launches)


def _with_clocks(found: Sequence[Measurement], clocks: Sequence[float | None]) -> list[Measurement]:
    """The measurements with their clocks over that of the longest cases of their kernels."""
    lasting: dict[tuple[str, int], list[float]] = defaultdict(list)
    for case, mhz in zip(found, clocks, strict=True):
        if mhz is not None and case.us >= LONG_US:
            lasting[_kind(case)].append(mhz)
    return [
        replace(case, clock=mhz / statistics.median(lasting[_kind(case)]))
        if mhz is not None and lasting[_kind(case)]
        else case
        for case, mhz in zip(found, clocks, strict=True)
    ]


def _kind(case: Measurement) -> tuple[str, int]:
    launch = case.launches[0]
    return launch.schedule, max(launch.head_dim_qk, launch.head_dim_vo)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("records", nargs="*", type=Path)
    paths = parser.parse_args().records or default_records()
    cases = [case for case in measured(paths) if not case.name.startswith(HELD_OUT)]
    fitted = fit_constants(cases, BUILT_IN, gpu=H200, source="records")
    print(fitted.gpu)
    for schedule, rows in fitted.times.items():
        for dim, times in rows.items():
            values = ", ".join(f"{name}={value:.3g}" for name, value in asdict(times).items())
            print(f"{schedule:14s}{dim:4d}  {values}")
    for case in cases:
        print(f"{case.name:44s}{case.us:9.1f} us  {case.predicted_us(fitted) / case.us:6.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
