"""What decode, real steps and the mixed batch are to reach, checked on a record.

`check` says nothing about what a record does not hold.
"""

from __future__ import annotations

import itertools
import re
import statistics
from collections.abc import Mapping, Sequence

from perf.cases import decode, latent
from perf.goals import Goal
from perf.joining import Cell, Key, Row, is_ours, is_wrong, join

READ_GBPS = 4633.0
"""Streaming read of the H200 that the peers were measured on."""
# Of a section: the geometric mean of the ratios to the best peer, and the worst cell.
AGAINST_PEERS = {"C": (1.12, 0.97), "D": (1.15, 0.97), "T": (1.12, 0.98)}
FEW_TOKENS = 1.02  # worst cell of section Q
DIMS = 1.02  # worst of head_dim 64 and 256 in section C
SKEW = {"32/8": 1.10, "64/8": 1.10, "32/32": 1.02}  # z2048, batch 16 on: worst cell
READ_SHARE = {0.5e9: 0.92, 2e9: 0.96, 4e9: 0.97}  # of READ_GBPS, from so many bytes of K and V on
LATENT_SHARE = 0.90  # of READ_GBPS, 16 and 32 heads, one token, from 0.5 GB of latent rows on
LATENCY_US = {"c1024 b1": 7.0, "c8192 b1": 13.0}  # 32/8 heads, at most
MIDDLE_GBPS = 3450.0  # 32/8 heads, c1024 b16
MIXED, MIXED_PARTS = "2048@8192 + 128x4096", ("2048@8192", "128x4096")
MIXED_US, MIXED_SHARE = 700.0, 0.80  # at most; of the time of the parts one after the other


def check(rows: Sequence[Row], peers: Sequence[Row]) -> list[Goal]:
    """Goals that a record says something about."""
    right = [row for row in rows if is_ours(row) and not is_wrong(row)]
    ours = {(row["sec"], row["cfg"]): row for row in right}
    cells = [cell for cell in join(rows, peers) if cell.ratio]
    rates = [row["gbps_graph"] for row in rows if row.get("sec") == "E" and "gbps_graph" in row]
    return [*_against_peers(cells), *_alone(ours), *_shares(ours, rates), *_mixed(ours)]


def _against_peers(cells: Sequence[Cell]) -> list[Goal]:
    def ratios(sec: str, pattern: str = "") -> list[float]:
        own = (cell for cell in cells if cell.row["sec"] == sec)
        return [c.ratio for c in own if c.ratio and re.search(pattern, c.row["cfg"])]

    found = []
    for sec, (mean, worst) in AGAINST_PEERS.items():
        if own := ratios(sec):
            got = statistics.geometric_mean(own)
            found.append(Goal(f"{sec}: mean of the best peer", got, mean))
            found.append(Goal(f"{sec}: worst cell", min(own), worst))
    if own := ratios("Q"):
        found.append(Goal("Q: worst cell", min(own), FEW_TOKENS))
    if own := ratios("C", " d(64|256) "):
        found.append(Goal("C: worst of head_dim 64 and 256", min(own), DIMS))
    for heads, least in SKEW.items():
        if own := ratios("C", f"^{heads} .* z2048 b(16|64|256)$"):
            found.append(Goal(f"C: z2048 from batch 16 on, {heads}, worst", min(own), least))
    return found


def _alone(ours: Mapping[Key, Row]) -> list[Goal]:
    """Small steps."""
    found = []
    for name, most in LATENCY_US.items():
        times = _of_32_8(ours, name, "us_graph")
        if times:
            found.append(Goal(f"C: 32/8 {name}, {most:g} us over the time", most / max(times), 1.0))
    if rates := _of_32_8(ours, "c1024 b16", "gbps_graph"):
        found.append(Goal("C: 32/8 c1024 b16, GB/s", min(rates), MIDDLE_GBPS))
    return found


def _shares(ours: Mapping[Key, Row], rates: Sequence[float]) -> list[Goal]:
    """Of the read rate that was recorded with the peers, and of that of the same run."""
    found = []
    bytes_of = {case.cfg: case.kv_bytes for case in decode()}
    for ceiling, whose in [(READ_GBPS, ""), *((rate, " (this card)") for rate in rates)]:
        for least, below in itertools.pairwise([*READ_SHARE, float("inf")]):
            shares = [
                row["gbps_graph"] / ceiling
                for (sec, cfg), row in ours.items()
                if sec == "C" and least <= bytes_of.get(cfg, 0) < below
            ]
            if shares:
                what = f"C: worst share of {ceiling:.0f} GB/s{whose} from {least / 1e9:g} GB on"
                found.append(Goal(what, min(shares), READ_SHARE[least]))
        large = [case.cfg for case in latent() if case.kv_bytes >= 0.5e9]
        shares = [
            row["gbps_graph"] / ceiling
            for (sec, cfg), row in ours.items()
            if sec == "DH" and re.search(" h(16|32) q1 ", cfg) and cfg in large
        ]
        if shares:
            what = f"DH: worst share of {ceiling:.0f} GB/s{whose}, 16 and 32 heads"
            found.append(Goal(what, min(shares), LATENT_SHARE))
    return found


def _of_32_8(ours: Mapping[Key, Row], name: str, field: str) -> list[float]:
    """A field of a case with 32/8 heads, at all page sizes."""
    return [
        row[field]
        for (sec, cfg), row in ours.items()
        if sec == "C" and cfg.startswith("32/8 p") and cfg.endswith(f" {name}")
    ]


def _mixed(ours: Mapping[Key, Row]) -> list[Goal]:
    both, *parts = (ours.get(("X", cfg)) for cfg in (MIXED, *MIXED_PARTS))
    if both is None:
        return []
    us = both["us_graph"]
    found = [Goal(f"X: {MIXED_US:g} us over the time", MIXED_US / us, 1.0)]
    alone = [part["us_graph"] for part in parts if part is not None]
    if len(alone) == len(MIXED_PARTS):
        what = f"X: {MIXED_SHARE:g} x its parts' time over its own"
        found.append(Goal(what, MIXED_SHARE * sum(alone) / us, 1.0))
    return found
