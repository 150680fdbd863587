"""`cute-attn cache`: list, size, prune and verify the kernels on disk, beside running processes.

Nothing here imports torch or compiles.
"""

from __future__ import annotations

import fnmatch
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from cute_attn.cli import quantities
from cute_attn.cli.terminal import errors_for_people, output, table
from cute_attn.runtime import available_toolchains
from cute_attn.runtime import cache_upkeep as upkeep
from cute_attn.runtime.cache import default_directory
from cute_attn.runtime.cache_upkeep import Entry, Leftover

app = typer.Typer(
    help="Look after the kernels on disk: what is there, how much, what may go, what is damaged.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

_Directory = Annotated[
    Path | None,
    typer.Option(help="Of the cache; default: CUTE_ATTN_CACHE_DIR, or the user's."),
]
_Name = Annotated[
    str | None, typer.Option(help="Kernels of such names alone; * and ? stand for anything.")
]
_Arch = Annotated[str | None, typer.Option(help="Kernels for this architecture alone.")]
_Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


class Order(str, Enum):
    """How kernels are listed."""

    USED = "used"
    CREATED = "created"
    SIZE = "size"
    NAME = "name"


_ORDERS: dict[Order, Callable[[Entry], Any]] = {
    Order.USED: lambda entry: -entry.used,
    Order.CREATED: lambda entry: -entry.created,
    Order.SIZE: lambda entry: -entry.num_bytes,
    Order.NAME: lambda entry: (entry.name, entry.created),
}


@app.command("list")
def list_command(
    name: _Name = None,
    arch: _Arch = None,
    order: Annotated[
        Order, typer.Option(help="Last used first, newest first, largest first, or by name.")
    ] = Order.USED,
    limit: Annotated[int | None, typer.Option(min=1, help="List so many.")] = None,
    directory: _Directory = None,
    as_json: _Json = False,
) -> None:
    """List kernels: name, size, compiler, when made and when last used.

    \b
    Examples:
      cute-attn cache list --limit 20
      cute-attn cache list --name 'hopper_tile_*_d128_*' --order size
      cute-attn cache list --json
    """
    place = _existing(directory)
    found = sorted(_chosen(upkeep.entries(place), name, arch), key=_ORDERS[order])
    total = len(found)
    found = found[:limit]
    if as_json:
        facts = {"directory": str(place), "kernels": [_facts(entry) for entry in found]}
        typer.echo(json.dumps(facts, indent=2))
        return
    now = time.time()
    rows = table("kernel", "compiler", "size", "made", "last used", left=2)
    for entry in found:
        rows.add_row(
            escape(entry.name),
            str(entry.toolchain or "?"),
            quantities.in_words(entry.num_bytes),
            quantities.ago(now - entry.created),
            quantities.ago(now - entry.used),
        )
    if found:
        output().print(rows)
    size = quantities.in_words(sum(entry.num_bytes for entry in found))
    of_all = f" of {total}" if total > len(found) else ""
    typer.echo(f"{len(found)}{of_all} kernels, {size}, in {place}")


@app.command("size")
def size_command(directory: _Directory = None, as_json: _Json = False) -> None:
    """Count kernels and bytes by architecture and compiler.

    \b
    Examples:
      cute-attn cache size
      cute-attn cache size --directory /mnt/kernels --json
    """
    place = _existing(directory)
    found, rest = upkeep.entries(place), upkeep.leftovers(place)
    groups: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in found:
        groups[entry.arch, str(entry.toolchain or "?")].append(entry)
    num_bytes, rest_bytes = _bytes(found), _bytes(rest)
    if as_json:
        facts = {
            "directory": str(place),
            "kernels": len(found),
            "bytes": num_bytes,
            "leftover_bytes": rest_bytes,
            "groups": [
                {"arch": arch, "toolchain": made_by, "kernels": len(of), "bytes": _bytes(of)}
                for (arch, made_by), of in sorted(groups.items())
            ],
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    rows = table("architecture", "compiler", "kernels", "size", left=2)
    for (arch, made_by), of in sorted(groups.items()):
        rows.add_row(arch, made_by, str(len(of)), quantities.in_words(_bytes(of)))
    if found:
        output().print(rows)
    typer.echo(f"{len(found)} kernels, {quantities.in_words(num_bytes)}, in {place}")
    if rest:
        typer.echo(f"{quantities.in_words(rest_bytes)} of leftovers: `cute-attn cache prune`")


@app.command("prune")
def prune_command(
    older_than: Annotated[
        float | None,
        typer.Option(
            parser=quantities.duration,
            metavar="TIME",
            help="Kernels not used for so long: 90m, 12h, 30d, 2w.",
        ),
    ] = None,
    max_size: Annotated[
        int | None,
        typer.Option(
            parser=quantities.size,
            metavar="SIZE",
            help="The least recently used, until the rest has this size: 500M, 2GiB.",
        ),
    ] = None,
    other_versions: Annotated[
        bool,
        typer.Option(
            "--other-versions",
            help="Kernels of compilers that are not installed, or of other versions of headers.",
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would go.")] = False,
    directory: _Directory = None,
    as_json: _Json = False,
) -> None:
    """Remove kernels that are old, too many, or that nothing here would look up again.

    What damaged entries and killed processes left behind goes in any case. A kernel that another
    process is compiling at this moment stays; one that is in use is in that process's memory.

    \b
    Examples:
      cute-attn cache prune --older-than 30d --max-size 2GiB
      cute-attn cache prune --other-versions --dry-run
      cute-attn cache prune                  # leftovers alone
    """
    place = _existing(directory)
    found, rest = upkeep.entries(place), upkeep.leftovers(place)
    reasons: dict[Entry, str] = {}
    if older_than is not None:
        before = time.time() - older_than
        old = [entry for entry in found if entry.used < before]
        reasons |= {entry: f"last used {_date(entry.used)}" for entry in old}
    if other_versions:
        for entry in found:
            if entry not in reasons and (reason := _outdated(entry)):
                reasons[entry] = reason
    if max_size is not None:
        kept = [entry for entry in found if entry not in reasons]
        limit = quantities.in_words(max_size)
        reasons |= {entry: f"beyond {limit}" for entry in upkeep.beyond(kept, max_size)}
    removed, gone = list(reasons), rest
    if not dry_run:
        with errors_for_people():
            removed, gone = _remove(place, reasons, rest)
    _report(place, removed, reasons, gone, dry_run=dry_run, as_json=as_json)


@app.command("verify")
def verify_command(
    name: _Name = None,
    arch: _Arch = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove what is damaged; it is compiled again.")
    ] = False,
    directory: _Directory = None,
    as_json: _Json = False,
) -> None:
    """Read every kernel and compare it with its checksums; exit code 1 if one is damaged.

    \b
    Examples:
      cute-attn cache verify
      cute-attn cache verify --remove
    """
    place = _existing(directory)
    found = _chosen(upkeep.entries(place), name, arch)
    damaged = {entry: problem for entry in found if (problem := upkeep.damage(entry))}
    removed: list[Entry] = []
    if remove and damaged:
        with errors_for_people():
            removed = _remove(place, damaged, [])[0]
    left = len(damaged) - len(removed)
    if as_json:
        facts = {
            "directory": str(place),
            "kernels": len(found),
            "damaged": [
                _facts(entry) | {"problem": problem, "removed": entry in removed}
                for entry, problem in damaged.items()
            ],
        }
        typer.echo(json.dumps(facts, indent=2))
    else:
        for entry, problem in damaged.items():
            done = "removed: " if entry in removed else ""
            typer.echo(f"{done}{entry.path}: {problem}")
        hint = "; --remove removes them" if left and not remove else ""
        typer.echo(f"{len(found)} kernels, {len(damaged)} damaged, {len(removed)} removed{hint}")
    raise typer.Exit(1 if left else 0)


def _existing(directory: Path | None) -> Path:
    """The cache directory that is meant.

    Raises:
        typer.BadParameter: one was named that is none.
    """
    if directory is not None and not directory.is_dir():
        raise typer.BadParameter(f"{directory} is no directory", param_hint="--directory")
    return directory or default_directory()


def _date(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def _chosen(found: Iterable[Entry], name: str | None, arch: str | None) -> list[Entry]:
    return [
        entry
        for entry in found
        if fnmatch.fnmatchcase(entry.name, name or "*") and arch in (None, entry.arch)
    ]


def _outdated(entry: Entry) -> str | None:
    from cute_attn import ampere, hopper

    include_dirs = tuple(dict.fromkeys((*hopper.include_dirs(), *ampere.include_dirs())))
    return upkeep.outdated(entry, include_dirs, available_toolchains())


def _remove(
    place: Path, chosen: Iterable[Entry], rest: Iterable[Leftover]
) -> tuple[list[Entry], list[Leftover]]:
    """What of it could be removed.

    Raises:
        ValueError: the directory cannot be written.
    """
    try:
        return (
            upkeep.remove(place, chosen),
            [leftover for leftover in rest if upkeep.remove_leftover(leftover)],
        )
    except OSError as error:
        raise ValueError(f"{place}: cannot be written: {error}") from error


def _report(
    place: Path,
    removed: list[Entry],
    reasons: dict[Entry, str],
    gone: list[Leftover],
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    kept = len(reasons) - len(removed)
    if as_json:
        facts = {
            "directory": str(place),
            "dry_run": dry_run,
            "removed": [_facts(entry) | {"reason": reasons[entry]} for entry in removed],
            "bytes": _bytes(removed),
            "leftovers": [
                {"path": str(x.path), "what": x.what, "bytes": x.num_bytes} for x in gone
            ],
            "in_use": kept,
        }
        typer.echo(json.dumps(facts, indent=2))
        return
    for entry in removed:
        typer.echo(f"{entry.name}: {reasons[entry]}")
    verb = "would go" if dry_run else "removed"
    typer.echo(
        f"{len(removed)} kernels, {quantities.in_words(_bytes(removed))}, {verb};"
        f" of leftovers {quantities.in_words(_bytes(gone))}"
    )
    if kept:
        typer.echo(f"{kept} stay: another process compiles or removes them at this moment")


def _bytes(found: Iterable[Entry] | Iterable[Leftover]) -> int:
    return sum(one.num_bytes for one in found)


def _facts(entry: Entry) -> dict[str, Any]:
    """An entry as JSON values; times in seconds since the epoch."""
    return {
        "name": entry.name,
        "arch": entry.arch,
        "key": entry.key,
        "path": str(entry.path),
        "bytes": entry.num_bytes,
        "toolchain": None if entry.toolchain is None else entry.toolchain.name,
        "created": entry.created,
        "used": entry.used,
    }
