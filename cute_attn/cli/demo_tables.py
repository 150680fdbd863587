"""What the demo prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from cute_attn.cli.compile import summary
from cute_attn.cli.compiling import Outcome
from cute_attn.cli.demo_batch import HEAD_DIM, HEADS, PAGE_SIZE, SMALL_HEADS
from cute_attn.cli.demo_check import MAX_ERROR, MAX_LSE_ERROR, MAX_ROW_ERROR, Errors
from cute_attn.cli.plan_facts import PlanFacts
from cute_attn.cli.terminal import table
from cute_attn.runtime import CompiledKernel, DeviceInfo
from cute_attn.workloads import Step

if TYPE_CHECKING:
    from cute_attn.cli.demo import StepResult

Planned = tuple[Step, str, PlanFacts]
"""A step, the GPU (or "CPU") that it is planned for, and the plan."""


def header(console: Console, gpu: DeviceInfo | None, archs: Sequence[str]) -> None:
    """What is done, on what, and where the steps come from."""
    console.print(
        "[bold]Attention of real serving steps[/bold]: prefill chunks and decodes in one batch,"
        f" {HEADS} heads, head_dim {HEAD_DIM}, bf16, causal, paged KV of {PAGE_SIZE} tokens."
    )
    console.print(
        "Lengths from the Azure LLM inference trace 2023 (Patel et al., Splitwise, ISCA 2024) and"
        " the Mooncake trace (Qin et al., FAST 2025); numbers in the tensors are random."
    )
    if gpu is None:
        console.print(
            f"[yellow]No GPU[/yellow]: kernels for {' and '.join(archs)} are generated and"
            " compiled; the steps run, scaled down, on the CPU executor."
        )
    else:
        console.print(f"GPU: {escape(gpu.name)}, {gpu.num_sms} SMs, {gpu.arch}")


def kernels(console: Console, outcomes: Sequence[Outcome], seconds: float) -> None:
    """Every kernel with its resources."""
    made = table(
        "generated kernel", "lines", "compile", "threads", "registers", "smem", "spills",
        title="Kernels",
    )  # fmt: skip
    toolchains = set()
    for outcome in outcomes:
        generated, result = outcome.generated, outcome.result
        label = generated.name.rpartition("_")[0]  # without the digest
        lines = str(generated.text.count("\n"))
        if not isinstance(result, CompiledKernel):
            made.add_row(label, lines, "[red]failed[/red]")
            continue
        toolchains.add(result.toolchain.name)
        used = result.resources
        seconds_text = "cached" if result.from_cache else f"{result.compile_seconds:.1f} s"
        spilled = used.spill_store_bytes + used.spill_load_bytes
        made.add_row(
            label,
            lines,
            seconds_text,
            str(generated.threads),
            str(used.registers),
            f"{outcome.smem_bytes / 1024:.0f} KiB",
            f"{spilled} B" if spilled else "none",
        )
    console.print(made)
    console.print(f"{summary(list(outcomes), seconds)} ({', '.join(sorted(toolchains)) or 'none'})")
    for outcome in outcomes:
        colour = "red" if outcome.status == "failed" else "yellow"
        for problem in outcome.problems:
            console.print(f"[{colour}]{outcome.generated.name}: {escape(problem)}[/{colour}]")
    console.print()


def plans(console: Console, planned: Sequence[Planned], title: str) -> None:
    """The balance of every plan."""
    made = table(
        "step", "GPU", "blocks", "batch", "prefill", "keys", "plan ms", "pieces", "split",
        "max/mean", "model us", title=title, left=2,
    )  # fmt: skip
    for step, gpu, facts in planned:
        made.add_row(
            step.name,
            escape(gpu),
            f"{facts.thread_blocks}",
            f"{facts.requests}",
            f"{step.prefill_rows:,}",
            f"{sum(step.kv_lens):,}",
            f"{facts.plan_ms:.2f}",
            f"{facts.pieces:,}",
            f"{facts.split_tiles:,}",
            f"{facts.imbalance:.3f}",
            "-" if facts.model_us is None else f"{facts.model_us:.0f}",
        )
    console.print(made)
    console.print(
        "batch: requests. prefill: query rows of prefill chunks. pieces: what the thread blocks"
        " compute. split: tiles in several pieces. max/mean: busiest block over the mean, by the"
        " cost model. model us: predicted by the simulator, not measured.\n"
    )


def measured(console: Console, results: Sequence[StepResult], skipped: Sequence[Step]) -> None:
    """Time, speed and errors of steps that ran on a GPU."""
    made = table("step", "us", "GB/s", "TFLOP/s", *_CHECKED, title="Measured steps")
    for result in results:
        speed = (f"{result.us:.1f}", f"{result.gbps:.0f}", f"{result.tflops:.0f}")
        made.add_row(result.step.name, *speed, *_checked(result.errors))
    console.print(made)
    for step in skipped:
        console.print(
            f"[yellow]{step.name} left out: its cache does not fit in GPU memory[/yellow]"
        )
    console.print(
        "us: attention of one layer in a replayed CUDA graph, merge included."
        " GB/s: K, V, q and out, each once. TFLOP/s: visible pairs only."
    )
    _explain_errors(console)


def executed(console: Console, results: Sequence[StepResult]) -> None:
    """Sizes and errors of scaled steps that ran on the CPU."""
    made = table(
        "step, scaled", "scale", "prefill", "keys", "pieces", "split", "CPU ms", *_CHECKED,
        title="Steps on the CPU executor",
    )  # fmt: skip
    for result in results:
        made.add_row(
            result.step.name,
            f"1/{result.divided_by}",
            f"{result.step.prefill_rows:,}",
            f"{sum(result.step.kv_lens):,}",
            f"{result.plan.pieces}",
            f"{result.plan.split_tiles}",
            f"{result.us / 1e3:.0f}",
            *_checked(result.errors),
        )
    console.print(made)
    console.print(
        f"Scaled: at most 8 requests, lengths scaled as shown, {SMALL_HEADS} heads. The executor"
        " runs a plan as the kernels do, item by item; it is exact, not fast."
    )
    _explain_errors(console)


_CHECKED = ("error", "worst row", "lse error", "")


def _checked(errors: Errors) -> tuple[str, ...]:
    verdict = "[green]ok[/green]" if errors.passed else "[bold red]WRONG[/bold red]"
    return f"{errors.relative:.1e}", f"{errors.worst_row:.1e}", f"{errors.lse:.1e}", verdict


def _explain_errors(console: Console) -> None:
    console.print(
        "errors: against a dense float64 softmax over the same keys; error and worst row relative"
        f" (at most {MAX_ERROR:.0e}, {MAX_ROW_ERROR:.0e}), lse absolute (at most"
        f" {MAX_LSE_ERROR:.0e})."
    )


def verdict(console: Console, correct: bool, seconds: float) -> None:
    """The last line."""
    if correct:
        console.print(f"[bold green]All checks passed[/bold green] in {seconds:.0f} s.")
    else:
        console.print(f"[bold red]FAILED[/bold red] after {seconds:.0f} s.")
