"""What says which kernel is meant: options of `show`, and the words of `diff`."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

import typer

from cute_attn.api import KernelSpec, Problem, choose
from cute_attn.api.dispatch import known_schedules, with_tile
from cute_attn.cli.choices import Arch, Dtype
from cute_attn.cli.compile import arch_here
from cute_attn.cli.variants import variant_of


@dataclass(frozen=True)
class SpecOptions:
    """A kernel as the command line describes it.

    Attributes:
        arch: of the GPU; None: the one here.
        dtype, head_dim, head_dim_vo, group: as in `KernelSpec`; head_dim_vo None: head_dim.
        page_size: tokens, 0 for ragged KV.
        variant: as `variants.variant_of` reads it.
        schedule: kernel family; None: the one that a batch takes.
        decode: the kernel of batches of decodes alone.
        rows: packed query rows of the longest request; None: any number.
        long: rows see many keys.
        per_head: every KV head of a request has a page table of its own.
        trace: the kernel that keeps time of its items.
        tile: overrides of the tile's fields, "kv=64".
    """

    arch: str | None = None
    dtype: str = "bf16"
    head_dim: int = 128
    head_dim_vo: int | None = None
    group: int = 4
    page_size: int = 0
    variant: str = "causal"
    schedule: str | None = None
    decode: bool = False
    rows: int | None = None
    long: bool = False
    per_head: bool = False
    trace: bool = False
    tile: tuple[str, ...] = ()

    def problem(self) -> Problem:
        """What the kernel is chosen by.

        Raises:
            typer.BadParameter: no such variant, or no architecture.
        """
        try:
            known = variant_of(self.variant)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--variant") from error
        return Problem(
            self.arch or arch_here(),
            self.dtype,
            self.head_dim,
            self.head_dim_vo or self.head_dim,
            self.group,
            known,
            self.page_size or None,
            self.per_head,
        )

    def spec(self) -> KernelSpec:
        """The kernel.

        Raises:
            typer.BadParameter: an option is malformed.
            UnsupportedSpecError: there is no such kernel.
        """
        rows = self.group if self.decode else self.rows
        spec = choose(self.problem(), rows=rows, long=self.long, schedule=self.schedule)
        spec = replace(spec, trace=self.trace)
        overrides = dict(_override(text, spec) for text in self.tile)
        return with_tile(spec, **overrides) if overrides else spec


def _override(text: str, spec: KernelSpec) -> tuple[str, int]:
    """ "kv=64" as ("kv", 64)."""
    name, _, value = text.partition("=")
    known = {field.name: type(getattr(spec.tile, field.name)) for field in fields(spec.tile)}
    if name not in known or not value.isdecimal():
        raise typer.BadParameter(
            f"{text!r} is no tile field: it takes NAME=NUMBER with {', '.join(known)}",
            param_hint="--tile",
        )
    return name, known[name](int(value))  # a switch stays a bool


_WORDS = tuple(field.name for field in fields(SpecOptions) if field.name != "tile")


def with_words(base: SpecOptions, text: str, hint: str) -> SpecOptions:
    """`base` with what "arch=sm_90a page-size=16 decode tile.kv=64" says.

    Args:
        base: what holds unless the words say otherwise.
        text: words apart by blanks: NAME=VALUE with the names of `show`'s options,
            tile.FIELD=NUMBER, or a switch alone.
        hint: what errors call it.

    Raises:
        typer.BadParameter: a word is none of them.
    """
    found: dict[str, Any] = {}
    tile = list(base.tile)
    for word in _split(text):
        name, equals, value = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if name.startswith("tile."):
            field = name.removeprefix("tile.")
            tile = [one for one in tile if not one.startswith(f"{field}=")]
            tile.append(f"{field}={value}")
        elif name in ("decode", "long", "per_head", "trace"):
            found[name] = _switch(word, value if equals else "yes", hint)
        elif name in _WORDS and value:
            found[name] = _typed(word, name, value, hint)
        else:
            raise typer.BadParameter(
                f"{word!r}: it takes NAME=VALUE with {', '.join(_WORDS)} or tile.FIELD",
                param_hint=hint,
            )
    return replace(base, **found, tile=tuple(tile))


def _split(text: str) -> list[str]:
    """At blanks outside of parentheses."""
    words, depth = [""], 0
    for letter in text:
        depth += (letter == "(") - (letter == ")")
        if letter.isspace() and depth <= 0:
            words.append("")
        else:
            words[-1] += letter
    return [word for word in words if word]


def _switch(word: str, value: str, hint: str) -> bool:
    if value not in ("yes", "no"):
        raise typer.BadParameter(f"{word!r}: it takes yes or no", param_hint=hint)
    return value == "yes"


def _typed(word: str, name: str, value: str, hint: str) -> Any:
    known = {
        "arch": [arch.value for arch in Arch],
        "dtype": [dtype.value for dtype in Dtype],
        "schedule": list(known_schedules()),
    }
    if name in known:
        if value not in known[name]:
            raise typer.BadParameter(
                f"{word!r}: it takes {', '.join(known[name])}", param_hint=hint
            )
        return value
    if name == "variant":
        return value
    if not value.isdecimal():
        raise typer.BadParameter(f"{word!r}: it takes a number", param_hint=hint)
    return int(value)
