"""Headline results of the FlashInfer paper (arXiv 2501.01005) in shape: its figures beside ours.

The paper measured an H100 SXM (80 GB) and an A100 in fp16, this project an H200 in bf16: shares and
ratios compare, absolute times do not. `MARKS` says how well each published figure is known.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from perf.compare import geometric_mean
from perf.joining import Row, best_peers, is_ours, is_wrong
from perf.report import composable
from perf.report.archive import Archive, Record
from perf.report.blocks import Block, Gap, Section, Source, Table
from perf.report.rooflines import ceiling

PEAK_TFLOPS = 989.0
"""Nominal dense 16-bit rate of H100 SXM and H200."""
PEERS_READ_GBPS = 4633.0
"""Streaming read of the card that the peers were measured on."""
MARKS = (
    "How the published figures are known: [paper] from its text; [second hand] from readings of"
    " its plots and tables by others; [blog] from the text of the project's blog; [plot] read off"
    " a plot there, give or take 3."
)
Maker = Callable[[Archive], Block]


def section(archive: Archive) -> Section:
    """Every headline: compared, or said not to be measured."""
    text = (
        "What the paper reports, beside the nearest cases measured here. Its cards are H100 SXM"
        f" and A100 in fp16, ours is an H200 in bf16. {MARKS}"
    )
    makers: Sequence[Maker] = (
        _decode_kernels,
        _prefill_kernels,
        _group_decode,
        _streaming,
        _page_one_decode,
        _page_one_prefill,
        _flex,
        _shared_prefix,
        _block_sparse,
    )
    gaps = [
        Gap(
            "End-to-end serving (Figure 7; Tables 6 to 8)",
            "Published: 29 to 69 % lower inter-token latency than the compiler back end [paper];"
            " 13.9 to 8.6 ms by load balancing, lengths 4k to 16k at rate 1 [second hand]; 12.56"
            " to 10.92 ms with an fp8 cache [second hand]. Not measured here: there is no engine"
            " in the benchmarks. The nearest are the real steps of section T above.",
        ),
    ]
    return Section(
        "published", "Published headline results", text, [*(m(archive) for m in makers), *gaps]
    )


def _shared_prefix(archive: Archive) -> Block:
    title = "Shared prefixes and parallel generation in composable formats (Figure 10, Table 5)"
    record = composable.newest(archive)
    if record is None:
        return Gap(title, "not measured: no record holds sections SP and PG", composable.COMMAND)
    published = {
        ("SP", "prefix 32768 + 128, b64"): "4,090 / 254.5 µs: 16.1 [second hand]",
        ("SP", "prefix 32768 + 128, b256"): "31 times vLLM 0.2.6 [blog]",
        ("PG", "mooncake 9924, n4"): "latency of the whole engine, see above",
    }
    rows = []
    for (sec, cfg), text in published.items():
        ways = composable.times(record, sec).get(cfg)
        if ways is not None:
            flat, auto = (ways[way]["us_graph"] for way in ("flat", "auto"))
            rows.append([cfg, text, f"{flat:,.1f}", f"{auto:,.1f}", f"{flat / auto:.2f}"])
    text = (
        "Published: attention over a prefix of 32k with 64 suffixes of 128 keys, single format /"
        " composable; cascade attention at 256 requests. Inter-token latency of a serving engine"
        " falls by 13.73 % (8B) and 17.42 % (70B) at 4 generations [paper]; of that only the"
        " attention is measured here."
    )
    head = ("case", "published", "one format µs", "auto µs", "ratio")
    return Table(title, head, rows, [Source.of(record)], text)


def _block_sparse(archive: Archive) -> Block:
    title = "Block-sparse attention of Quest (Tables 9 to 11)"
    command = "python -m perf.bench_composable --section SB,SL"
    record = archive.newest("SB", ("composable",))
    if record is None:
        return Gap(title, "not measured: no record holds sections SB and SL", command)
    rows = [
        [name, f"{row['us']:,.0f}", f"{row['dense_us']:,.0f}", f"{row['dense_us'] / row['us']:.2f}"]
        for name, row in _by_name(record, "SB").items()
        if row.get("dense_us")
    ]
    text = (
        "Published: up to about 20 times torch SDPA and FlexAttention, blocks of 16 [second hand]."
        " Ours: prefill of 16k queries and keys, against our own dense kernel in the same run."
    )
    head = ("heads, blocks, share of them that is read", "µs", "dense µs", "ratio")
    return Table(title, head, rows, [Source.of(record)], text)


def _by_name(record: Record, sec: str) -> dict[str, Row]:
    return {r["cfg"]: r for r in record.of(sec) if is_ours(r) and not is_wrong(r)}


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _decode_kernels(archive: Archive) -> Block:
    title = "Decode, batch 16: share of the memory's bandwidth (Figure 8)"
    command = "python -m perf.bench_decode --match b16"
    record = archive.newest("C")
    reads = ceiling(record, "gbps_graph") if record else None
    if record is None or reads is None:
        return Gap(title, "not measured: no record holds sections C and E", command)
    ours, peers = _by_name(record, "C"), best_peers(archive.peers)
    published = {
        ("32/32", "constant"): "73 / 65 %",
        ("32/8", "constant"): "73 / 70 %",
        ("64/8", "constant"): "58 / 53 %",
        ("32/32", "uniform"): "43 / 43 %",
        ("32/8", "uniform"): "52 / 43 %",
        ("64/8", "uniform"): "36 / 35 %",
        ("32/32", "skewed"): "readings disagree",
        ("32/8", "skewed"): "readings disagree",
        ("64/8", "skewed"): "readings disagree",
    }
    kinds = {"constant": "c1024", "uniform": "u1-8192", "skewed": "z2048"}
    rows = []
    for (heads, kind), text in published.items():
        name = f"{heads} p16 {kinds[kind]} b16"
        row, peer = ours.get(name), peers.get(("C", name))
        if row is None or "gbps_graph" not in row:
            continue
        share = row["gbps_graph"] / reads
        bytes_read = row["gbps_graph"] * row["us_graph"]  # GB/s times µs: thousands of bytes
        peer_share = f"{_percent(bytes_read / peer[0] / PEERS_READ_GBPS)} {peer[1]}" if peer else ""
        rows.append([f"{kind}, {heads} heads", text, name, _percent(share), peer_share])
    text = (
        "Published [second hand]: H100, FlashInfer / FlashAttention of the day, share of the"
        " nominal bandwidth, lengths constant 1,024, uniform 512 to 1,024 and Zipf of mean 1,024."
        " Our uniform and skewed lengths are longer (1 to 8k; Zipf of mean 2k), and shares are of"
        " the rate at which the same card streams. Of skewed lengths two readings of the plot"
        " disagree; the text [paper] says that FlashInfer is clearly ahead there and with uniform"
        " lengths."
    )
    head = (
        "lengths and heads",
        "published, FlashInfer / FlashAttention",
        "our case",
        "ours",
        "best recorded peer",
    )
    return Table(title, head, rows, [Source.of(record)], text)


def _prefill_kernels(archive: Archive) -> Block:
    title = "Causal prefill over pages, batch 16: share of the peak (Figure 8)"
    record = archive.newest("B")
    if record is None:
        return Gap(
            title,
            "not measured: no record holds section B",
            "python -m perf.bench_prefill --section B",
        )
    ours, rows = _by_name(record, "B"), []
    best = best_peers(archive.peers)
    flashinfer = best_peers(archive.peers, "fi_")
    for kind, lengths, text in (
        ("constant", "c1024", ""),
        ("uniform", "u512-1024", "48 / 37 % (32/32 heads)"),
        ("skewed", "z1024", ""),
    ):
        name = f"b16 {lengths} p16"
        row = ours.get(name)
        if row is None or "tflops" not in row:
            continue
        flops = row["tflops"] * row["us"]
        shares = [
            f"{_percent(flops / found[0] / PEAK_TFLOPS)} {found[1]}" if found else ""
            for found in (flashinfer.get(("B", name)), best.get(("B", name)))
        ]
        rows.append([kind, text, name, _percent(row["tflops"] / PEAK_TFLOPS), *shares])
    text = (
        "Published [second hand]: H100, FlashInfer / FlashAttention, share of the nominal peak. The"
        f" lengths are the paper's, 32/8 heads, page size 16; the peak is {PEAK_TFLOPS:.0f} TFLOP/s"
        " for us and for the peers, which were measured on another H200."
    )
    head = (
        "lengths",
        "published",
        "our case",
        "ours",
        "FlashInfer 0.7.4 here",
        "best recorded peer",
    )
    return Table(title, head, rows, [Source.of(record)], text)


def _group_decode(archive: Archive) -> Block:
    title = "Grouped-query decode, batch 64: share of the bandwidth (the project's blog)"
    record = archive.newest("C")
    reads = ceiling(record, "gbps_graph") if record else None
    if record is None or reads is None:
        return Gap(
            title,
            "not measured: no record holds sections C and E",
            "python -m perf.bench_decode --match b64",
        )
    ours, rows = _by_name(record, "C"), []
    published = {"1k": "61 %", "2k": "73 %", "4k": "82 %", "8k": "88 %"}
    for length, text in published.items():
        row = ours.get(f"64/8 p16 c{int(length[0]) * 1024} b64")
        share = (
            _percent(row["gbps_graph"] / reads) if row and "gbps_graph" in row else "not measured"
        )
        rows.append([f"{length} keys", text, share])
    text = (
        "Published [plot]: H100, 32/4 heads, head_dim 128, tensor cores. Ours: 64/8 heads (the same"
        " group of 8), page size 16, share of the streaming read of the same run."
    )
    return Table(title, ("keys", "published", "ours"), rows, [Source.of(record)], text)


def _streaming(archive: Archive) -> Block:
    title = "StreamingLLM: rotary embedding fused into attention (Figure 9)"
    record = archive.newest("R")
    if record is None:
        return Gap(
            title,
            "not measured: no record holds section R",
            "python -m perf.bench_variants --match w",
        )
    unfused = {row["cfg"]: row for row in archive.peers if row["sec"] == "R"}
    rows, ratios = [], []
    for name, row in _by_name(record, "R").items():
        pair = unfused.get(name)
        if pair is None:
            continue
        ratios.append(pair["us"] / row["us"])
        two = (
            f"{pair['us_rope']:,.0f} + {pair['us_att']:,.0f}"
            if "us_rope" in pair
            else f"{pair['us']:,.0f}"
        )
        rows.append(
            [
                name,
                f"{row['us']:,.1f}",
                two,
                f"{ratios[-1]:.2f}",
                _percent(row.get("of_plain", 0.0)),
            ]
        )
    text = (
        "Published: the fused kernel has 1.6 to 3.7 times the bandwidth of the unfused pair,"
        " latency falls by 28 to 30 % [paper]; inter-token latency on an H100 13.2 to 13.4 ms"
        " fused, 18.2 to 20.0 unfused [second hand]. Ours, Vicuna-13B's shapes, kernels alone"
        " (inter-token latency of a model is not measured): "
        + (
            f"{min(ratios):.1f} to {max(ratios):.1f} times, geometric mean"
            f" {geometric_mean(ratios):.2f}."
            if ratios
            else "no case in common."
        )
    )
    head = (
        "batch, window",
        "fused, µs",
        "unfused: rope + attention, µs",
        "ratio",
        "of attention without rope",
    )
    return Table(title, head, rows, [Source.of(record)], text)


def _page_one_decode(archive: Archive) -> Block:
    title = "Page size 1 in decode (Figure 12)"
    record = archive.newest("C")
    if record is None:
        return Gap(title, "not measured: no record holds section C", "python -m perf.bench_decode")
    ours = _by_name(record, "C")
    rows = []
    for kind in ("c1024", "c8192", "u1-8192", "z2048"):
        found = [
            (ours[paged]["us_graph"] / row["us_graph"], name)
            for name, row in ours.items()
            if name.startswith(f"32/8 p1 {kind} ")
            and (paged := name.replace(" p1 ", " p64 ")) in ours
        ]
        if found:
            worst = min(found)
            mean = geometric_mean([v for v, _ in found])
            rows.append([kind, "within 1 %", f"{mean:.3f}", f"{worst[0]:.3f}", worst[1]])
    text = (
        "Published [paper]: page size 1 decodes within 1 % of contiguous keys (32/32 heads). Ours:"
        " time with pages of 64 over time with page size 1, 32/8 heads, batch 1 to 256."
    )
    head = ("lengths", "published", "ours, mean", "worst", "worst case")
    return Table(title, head, rows, [Source.of(record)], text)


def _page_one_prefill(archive: Archive) -> Block:
    title = "Page size 1 in causal prefill (Figure 12)"
    record = archive.newest("P")
    if record is None:
        return Gap(
            title,
            "not measured: no record holds section P",
            "python -m perf.bench_prefill --section P",
        )
    ours, rows = _by_name(record, "P"), []
    for name, row in ours.items():
        paged = re.sub(" ragged$", " p1", name)
        if paged != name and paged in ours:
            rates = [f"{r['tflops']:.0f}" for r in (row, ours[paged])]
            rows.append(
                [name.removesuffix(" ragged"), *rates, f"{row['us'] / ours[paged]['us']:.2f}"]
            )
    text = (
        "Published: about 10 % slower than contiguous with the FlashAttention-3 template [paper];"
        " TFLOP/s sparse / dense by batch x length: 128 x 1k 343 / 391, 64 x 2k 422 / 472, 32 x"
        " 4k 475 / 533 [plot]. Ours: 32/8 heads, ragged against page size 1."
    )
    head = ("batch and length", "ragged, TFLOP/s", "page size 1, TFLOP/s", "share kept")
    return Table(title, head, rows, [Source.of(record)], text)


def _flex(archive: Archive) -> Block:
    title = "Against FlexAttention (Appendix G)"
    record = archive.newest("V")
    if record is None:
        return Gap(
            title, "not measured: no record holds section V", "python -m perf.bench_variants"
        )
    ours, flex, rows = _by_name(record, "V"), {}, []
    flex = {row["cfg"]: row for row in archive.peers if row["sec"] == "V"}
    for name, text, published in (
        ("b4 s4096 causal", "causal, 4,096", (548, 421)),
        ("b1 s16384 causal", "causal, 16,384", (612, 454)),
        ("b4 s4096 alibi", "ALiBi, 4,096", (561, 426)),
        ("b4 s4096 window1024", "sliding window 1,024 at 1,024", (374, 292)),
        ("b4 s4096 softcap30", "soft cap", None),
    ):
        row, other = ours.get(name), flex.get(name)
        if row is None or other is None or "tflops" not in row or "tflops" not in other:
            continue
        theirs = f"{published[0]} / {published[1]}" if published else "values not recovered"
        ratio = f"{published[0] / published[1]:.2f}" if published else ""
        both = f"{row['tflops']:.0f} / {other['tflops']:.0f}"
        rows.append([text, theirs, ratio, name, both, f"{other['us'] / row['us']:.2f}"])
    text = (
        "Published [second hand]: TFLOP/s on an H100, FlashInfer / FlexAttention, batch 16, 16"
        " heads, head_dim 128. Ours: cute_attn / FlexAttention of torch 2.11 on another H200, 16k"
        " tokens in all, visible pairs only counted; the window at length 4,096."
    )
    head = ("case", "published", "ratio", "our case", "ours", "ratio")
    return Table(title, head, rows, [Source.of(record)], text)
