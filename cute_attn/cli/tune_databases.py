"""The tune databases that `cute-attn info` lists: the package's and the user's."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

from cute_attn.cli.terminal import table
from cute_attn.tuning import Database, DatabaseError, files


def collect(gpus: Iterable[tuple[int, str, int]]) -> list[dict[str, Any]]:
    """A row per file, as JSON values; of entries for the same steps those of the later file count.

    Args:
        gpus: index, name and SMs of the devices that are here.
    """
    devices = list(gpus)
    return [_facts(path, devices) for path in files.places()]


def _facts(path: Path, devices: list[tuple[int, str, int]]) -> dict[str, Any]:
    facts: dict[str, Any] = {"file": str(path), "gpu": None, "sms": None, "devices": []}
    facts |= {"steps": 0, "winners": 0, "digest": None, "problem": None}
    try:
        found: Database = files.read(path)
    except DatabaseError as error:
        return facts | {"problem": str(error)}
    if not files.is_named_after_its_gpu(path, found):
        facts["problem"] = f"{path}: not named after its GPU; plans do not look into it"
    else:
        own = (found.name, found.sms)
        facts["devices"] = [index for index, *gpu in devices if tuple(gpu) == own]
    winners = sum(entry.taken is not None for entry in found.entries.values())
    return facts | {
        "gpu": found.name,
        "sms": found.sms,
        "steps": len(found.entries),
        "winners": winners,
        "digest": found.digest,
    }


def render(facts: list[dict[str, Any]], console: Console) -> None:
    """Print the facts as a table, if there are any."""
    if not facts:
        return
    rows = table("tune database", "GPU", "device", "steps", "other kernels", left=2)
    for one in facts:
        gpu = "-" if one["gpu"] is None else f"{one['gpu']}, {one['sms']} SMs"
        device = ", ".join(map(str, one["devices"])) or "-"
        rows.add_row(
            escape(one["file"]), escape(gpu), device, str(one["steps"]), str(one["winners"])
        )
    console.print(rows)
    for one in facts:
        if one["problem"]:
            console.print(f"[red]tuning:[/red] {escape(one['problem'])}\n")
