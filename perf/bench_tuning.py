"""What tuning brings: held-out steps with and without the database, and a bad default's recovery.

    python -m perf.bench_tuning [--database FILE] [--match TEXT] [--out FILE]
    python -m perf.bench_tuning --bad-default
    python -m perf.bench_tuning --compile-only --arch sm_90a     # for a machine that cannot compile

Section U: ten steps that are not among those that are tuned, in turns, a rest before every burst.
`speedup` is the time without tuning over the time with it.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from pathlib import Path

import torch

from cute_attn import Tile, warmup
from cute_attn.api.tune_bench import MOST_ERROR, CudaBench
from cute_attn.api.tune_kernels import compile_contests
from cute_attn.api.tune_space import Contest, contests
from cute_attn.api.tuner import SMS
from cute_attn.runtime import current_device, device_info
from cute_attn.tuning import Candidate, TuneStep, search_step
from perf import harness
from perf.cases.tuning import held_out
from perf.tuning_goals import GOAL_MEAN

ROUNDS = 9
REPLAYS = 5
REST_S = 0.1
# One consumer warpgroup and small blocks: half of the tensor cores' rate.
BAD = Candidate(
    "hopper_tile",
    Tile(q=64, kv=48, stages=2, threads=256, producer_registers=72, consumer_registers=240),
)
BAD_STEP = TuneStep("bad default d128 causal 8 x 2048", (2048,) * 8, (2048,) * 8, 16, 16, 128)


def main() -> int:
    parser = harness.parser("Tuned against untuned, section U.")
    parser.add_argument("--database", type=Path, help="default: what plans look into")
    parser.add_argument("--bad-default", action="store_true", help="recovery of a bad default")
    parser.add_argument("--compile-only", action="store_true", help="fill the cache")
    parser.add_argument("--arch", default="sm_90a", help="with --compile-only")
    options = parser.parse_args()
    if options.compile_only:
        return compile_only(options.arch)
    if options.bad_default:
        return recover()
    cases = [case for case in held_out() if options.match in case.cfg]
    spec = cases[0].spec(harness.arch())
    results = harness.open_records("tuning", options.out, spec, database=options.database)
    speedups = []
    for case in cases:
        both = {
            "untuned": harness.prepare(case, rotate=True, tuning=False),
            "tuned": harness.prepare(case, rotate=True, tuning=options.database),
        }
        errors = {name: harness.check(one) for name, one in both.items()}
        times = in_turns(both)
        us = {name: statistics.median(own) for name, own in times.items()}
        ratios = [a / b for a, b in zip(*times.values(), strict=True)]
        speedup = statistics.median(ratios)
        speedups.append(speedup)
        for name, one in both.items():
            results.add(
                case.sec,
                case.cfg,
                peer=name,
                us_graph=us[name],
                err=errors[name],
                kernel=one.wrapper.kernels[0].name,
                speedup=speedup,
                spread=(max(ratios) - min(ratios)) / 2,
            )
        other = both["tuned"].wrapper.kernels[0].spec != both["untuned"].wrapper.kernels[0].spec
        print(
            f"{case.cfg:18s} {us['untuned']:8.1f} us, tuned {us['tuned']:8.1f}: {speedup:.3f}"
            f"  {'another kernel' if other else 'the same'}  err {errors['tuned']:.1e}"
        )
        del both
        torch.cuda.empty_cache()
    mean = math.exp(sum(map(math.log, speedups)) / len(speedups))
    print(f"geometric mean {mean:.3f} (asked {GOAL_MEAN}), worst {min(speedups):.3f}")
    return 0


def in_turns(both: dict[str, harness.Prepared]) -> dict[str, list[float]]:
    """Microseconds of a call of each, one number a round, the card rested before."""
    graphs, runs = {}, {}
    for name, one in both.items():
        count = len(one.caches)
        runs[name] = count * -(-harness.GRAPH_RUNS // count)
        graphs[name] = harness.captured(one.run, count, runs[name])
    times: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(ROUNDS):
        for name, graph in graphs.items():
            torch.cuda.synchronize()
            time.sleep(REST_S)
            harness.replay_us(graph)
            own = [harness.replay_us(graph) for _ in range(REPLAYS)]
            times[name].append(statistics.median(own) / runs[name])
    return times


def _contest(arch: str, sms: int, *, bad: bool) -> Contest:
    defaults = {BAD_STEP.name: BAD} if bad else None
    (found,) = contests([BAD_STEP], arch, sms, defaults=defaults)
    return found


def recover() -> int:
    """Tunes a step whose default is bad, and holds the winner against the table's kernel."""
    info = device_info(current_device())
    compiled = compile_contests([_contest(info.arch, info.num_sms, bad=True)])
    (contest,) = compiled.contests
    bench, begin = CudaBench(info), time.monotonic()
    session = bench.open(contest.step, contest.specs)
    result = search_step(session, contest.predicted_us, most_error=MOST_ERROR["bf16"])
    session.close()
    seconds = time.monotonic() - begin
    assert result is not None  # there is no deadline
    measured, winner = result
    if winner is None:
        print(f"the bad default stays: {measured[0].us:.1f} us")
        return 1
    taken = measured[winner]
    table = _contest(info.arch, info.num_sms, bad=False).candidates[0]
    specs = {c: s for c, s in contest.specs.items() if c == taken.candidate}
    specs[table] = _contest(info.arch, info.num_sms, bad=False).specs[table]
    session = bench.open(contest.step, specs)
    times: dict[Candidate, list[float]] = {c: [] for c in session.candidates}
    for _ in range(ROUNDS):
        for candidate, own in times.items():
            own.append(session.burst(candidate))
    session.close()
    found, wanted = (statistics.median(times[c]) for c in (taken.candidate, table))
    print(
        f"{contest.step.name}: {measured[0].us:.1f} us with the bad default ({BAD.label}),"
        f" {found:.1f} with the winner ({taken.candidate.label}), {wanted:.1f} with the table's"
        f" ({table.label}); {seconds:.1f} s"
    )
    return 0 if found <= 1.01 * wanted else 1


def compile_only(arch: str) -> int:
    """Compiles the tables' kernels of the held-out steps, and what the recovery compares."""
    specs = [part.spec for case in held_out() for part in case.parts(arch)]
    warmup(dict.fromkeys(specs))
    found = compile_contests([_contest(arch, SMS[arch], bad=bad) for bad in (True, False)])
    print(f"{len(specs)} kernels of held-out steps, {found.configurations} of the recovery")
    return 0


if __name__ == "__main__":
    sys.exit(main())
