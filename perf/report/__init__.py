"""The report: one self-contained HTML page from the records in perf/results.

    python -m perf.report [--results DIR] [--out report.html] [--json]

`archive` reads and checks records, `page` puts sections together and renders them; each section has
a module: `summary`, `rooflines`, `side_by_side`, `plans`, `published`, `checked`.
"""
