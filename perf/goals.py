"""What prefill is to reach, checked on a record: against peers, and against ourselves. What serving
is to reach: `serving_goals`.

`check` says nothing about what a record does not hold.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perf.cases.case import Case
from perf.cases.prefill import BETWEEN, windows
from perf.joining import Key, Row, is_ours, is_wrong, join

# Of a section: the geometric mean of the ratios to the best peer, and the worst cell.
AGAINST_PEERS = {"A": (1.0, 0.95), "A16": (1.0, 0.95), "B": (1.12, 1.05), "M": (1.0, 1.0)}
AGAINST_PEERS |= {"W": (1.05, 1.05)}
B_AGAINST_FLASHINFER = 1.4
CHUNK_TFLOPS = {8192: 380, 16384: 480, 32768: 560, 131072: 640}  # 8/1 heads
CHUNK_AGAINST_PEERS = 1.05  # 64/8 heads
PAGE_SHARE = {"p64": 0.97, "p16": 0.97, "p1": 0.93}  # of the rate with ragged KV
HEAD_DIM_SHARE = {80: 0.75, 96: 0.85, 112: 0.85, 192: 0.85}  # of the rate of BETWEEN's head dim
# e4m3, head_dim 128: cuDNN as NVIDIA has published it for an H200, TFLOP/s.
FP8_TFLOPS = {
    "d128 full   s4096": 909, "d128 full   s16384": 1039,
    "d128 causal s4096": 717, "d128 causal s16384": 997,
}  # fmt: skip
WINDOW_FACTOR, WINDOW_US = 1.10, 10.0  # times the tiles' time, plus


@dataclass(frozen=True)
class Goal:
    """One number and what it has to be at least."""

    what: str
    got: float
    least: float

    def __str__(self) -> str:
        verdict = "reached" if self.got >= self.least else "MISSED"
        return f"goal {self.what:58s} {self.got:8.5g}, at least {self.least:g}: {verdict}"


def check(rows: Sequence[Row], peers: Sequence[Row]) -> list[Goal]:
    """Goals that a record says something about."""
    right = [row for row in rows if is_ours(row) and not is_wrong(row)]
    ours = {(row["sec"], row["cfg"]): row for row in right}
    return [
        *_against_peers(rows, peers),
        *_chunks(ours),
        *_pages(ours),
        *_head_dims(ours),
        *_windows(ours),
        *_fp8(rows),
    ]


def _against_peers(rows: Sequence[Row], peers: Sequence[Row]) -> list[Goal]:
    found = []
    cells = join(rows, peers)
    for sec, (mean, worst) in AGAINST_PEERS.items():
        ratios = [cell.ratio for cell in cells if cell.ratio and cell.row["sec"] == sec]
        if ratios:
            got = statistics.geometric_mean(ratios)
            found.append(Goal(f"{sec}: mean of the best peer", got, mean))
            found.append(Goal(f"{sec}: worst cell", min(ratios), worst))
    ratios = [c.ratio for c in join(rows, peers, "fi_") if c.ratio and c.row["sec"] == "B"]
    if ratios:
        got = statistics.geometric_mean(ratios)
        found.append(Goal("B: mean of FlashInfer's best", got, B_AGAINST_FLASHINFER))
    many = [c.ratio for c in cells if c.ratio and c.row["sec"] == "K" and c.name[:4] == "64/8"]
    if many:
        what = "K: worst of 64/8 heads, of the best peer"
        found.append(Goal(what, min(many), CHUNK_AGAINST_PEERS))
    return found


def _chunks(ours: Mapping[Key, Row]) -> list[Goal]:
    found = []
    for kv, least in CHUNK_TFLOPS.items():
        row = ours.get(("K", f"8/1 q256 kv{kv}"))
        if row and "tflops_graph" in row:
            found.append(Goal(f"K: TFLOP/s of {row['cfg']}", row["tflops_graph"], least))
    return found


def _pages(ours: Mapping[Key, Row]) -> list[Goal]:
    found = []
    for layout, least in PAGE_SHARE.items():
        shares = []
        for (sec, cfg), row in ours.items():
            ragged = ours.get(("P", cfg.replace(f" {layout}", " ragged")))
            if sec == "P" and cfg.endswith(f" {layout}") and ragged:
                shares.append(ragged["us"] / row["us"])
        if shares:
            found.append(Goal(f"P: {layout}, worst of ragged", min(shares), least))
    return found


def _head_dims(ours: Mapping[Key, Row]) -> list[Goal]:
    found = []
    for dim, like in BETWEEN.items():
        shares = [
            row["tflops"] / of["tflops"]
            for (sec, cfg), row in ours.items()
            if sec == "H"
            and cfg.startswith(f"d{dim} ")
            and (of := ours.get(("H", cfg.replace(f"d{dim} ", f"d{like} "))))
        ]
        if shares:
            what = f"H: head_dim {dim}, worst of head_dim {like}'s rate"
            found.append(Goal(what, min(shares), HEAD_DIM_SHARE[dim]))
    return found


def _windows(ours: Mapping[Key, Row]) -> list[Goal]:
    """The bound on a window's time by what we do it in: bound over time, at least 1."""
    full = ours.get(("A", "d128 full   s16384"))
    if full is None:
        return []
    pairs_per_us = 16 * 16384**2 / full["us"]
    shares = []
    for case in windows():
        row = ours.get(("W", case.cfg))
        if row and "tile" in row:
            bound = WINDOW_FACTOR * visited_pairs(case, *row["tile"]) / pairs_per_us + WINDOW_US
            shares.append(bound / row["us"])
    return [Goal("W: worst of 1.10 x the tiles' time + 10 us", min(shares), 1.0)] if shares else []


def _fp8(rows: Sequence[Row]) -> list[Goal]:
    right = [row for row in rows if is_ours(row) and not is_wrong(row)]
    ours = {row["cfg"]: row for row in right if row["sec"] == "F"}
    return [
        Goal(f"F: {cfg}, TFLOP/s", ours[cfg]["tflops"], least)
        for cfg, least in FP8_TFLOPS.items()
        if cfg in ours
    ]


def visited_pairs(case: Case, tile_q: int, tile_kv: int) -> int:
    """(query, key) pairs of all tiles that a causal window touches, over all heads.

    KV blocks begin at multiples of tile_kv; group 1, as many queries as keys.
    """
    assert case.window is not None and case.group == 1 and case.q_lens == case.kv_lens
    blocks = 0
    for length in case.q_lens:
        for first in range(0, length, tile_q):
            begin = max(0, first - case.window + 1) // tile_kv
            end = -(-min(length, first + tile_q) // tile_kv)
            blocks += end - begin
    return blocks * tile_q * tile_kv * case.num_qo_heads
