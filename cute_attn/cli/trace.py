"""`cute-attn trace`: the timeline of a real step, measured or predicted, as a file for Perfetto."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import typer

from cute_attn.api import BatchAttention, Problem, Variant
from cute_attn.api.launches import explained_launch, parts_of
from cute_attn.cli.compile import arch_here
from cute_attn.cli.demo_batch import HEAD_DIM, HEADS, PAGE_SIZE, cache_bytes, make_batch
from cute_attn.cli.plan_facts import GPU_SMS
from cute_attn.cli.show_plan import step_of
from cute_attn.cli.variants import variant_of
from cute_attn.runtime import device_count, device_info
from cute_attn.scheduler import explain

_MOST_MEMORY = 0.7  # of the GPU's, for K and V


def predict(step_name: str, variant: str, out: Path, arch: str | None, *, as_json: bool) -> None:
    """Writes what the simulator predicts.

    Raises:
        typer.BadParameter: no such step or variant, or no architecture.
        ValueError: the file cannot be written.
    """
    step, arch = step_of(step_name), arch or arch_here()
    group = HEADS.qo // HEADS.kv
    problem = Problem(arch, "bf16", HEAD_DIM, HEAD_DIM, group, _variant(variant), PAGE_SIZE)
    num_sms = GPU_SMS[arch][1]
    parts = parts_of(step.q_lens, step.kv_lens, problem, num_kv_heads=HEADS.kv, num_sms=num_sms)
    explanation = explain(*(explained_launch(part.plan(), part.spec) for part in parts))
    explanation.trace(out)
    facts = {"predicted_us": round(explanation.predicted_us, 2), "items": explanation.num_items}
    if as_json:
        _print_json(step_name, out, facts)
    else:
        typer.echo(
            f"{explanation.predicted_us:.1f} us predicted for {explanation.num_items} items on one"
            f" {GPU_SMS[arch][0]}: {out}"
        )


def measure(step_name: str, variant: str, out: Path, *, as_json: bool) -> None:
    """Runs the step on the GPU, and writes what was measured and what was predicted.

    Raises:
        typer.BadParameter: no such step or variant.
        ValueError: there is no GPU, too little memory, or the file cannot be written.
    """
    step, known = step_of(step_name), _variant(variant)
    if not device_count():
        raise ValueError(
            "trace runs a step on a GPU, and there is none: --predicted writes what the simulator"
            " predicts"
        )
    device = torch.device("cuda", torch.cuda.current_device())
    memory = device_info(device.index).memory_bytes
    if cache_bytes(step, HEADS) > _MOST_MEMORY * memory:
        raise ValueError(f"step {step_name!r} has more keys than this GPU has memory for")
    batch = make_batch(step, HEADS, device)
    attention = BatchAttention(HEADS.qo, HEADS.kv, HEAD_DIM, variant=known, device=device)
    attention.plan(batch.qo_indptr, batch.kv_format)
    trace, explanation = attention.trace(batch.q, batch.cache), attention.explain()
    trace.save(out, predicted=explanation)
    if as_json:
        launches = [
            {
                "kernel": launch.spec.name,
                "thread_blocks": len(launch.blocks),
                "items": sum(len(block.items) for block in launch.blocks),
                "begin_us": round(launch.begin_us, 2),
                "end_us": round(launch.end_us, 2),
                "imbalance": round(launch.imbalance, 4),
                "waiting": round(launch.waiting, 4),
            }
            for launch in trace.launches
        ]
        predicted = round(explanation.predicted_us, 2)
        facts = {"us": round(trace.us, 2), "predicted_us": predicted, "launches": launches}
        _print_json(step_name, out, facts)
    else:
        typer.echo(f"{trace}\n{explanation.predicted_us:.1f} us predicted\nwritten: {out}")


def _print_json(step_name: str, out: Path, facts: dict[str, Any]) -> None:
    typer.echo(json.dumps({"step": step_name, "file": str(out), **facts}, indent=2))


def _variant(text: str) -> Variant:
    try:
        return variant_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--variant") from error
