"""`Candidate`: a kernel that a class of steps may take; and its JSON."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from cute_attn.codegen.spec import Tile

_TILE_FIELDS = {field.name: field for field in fields(Tile)}


@dataclass(frozen=True)
class Candidate:
    """What is chosen among.

    Attributes:
        schedule: kernel family.
        tile: its tile.
        toolchain: name of the compiler, as `cute-attn info` shows it; None: the default one.
    """

    schedule: str
    tile: Tile
    toolchain: str | None = None

    @property
    def label(self) -> str:
        """Short text for people, e.g. "hopper_tile 128x96x3 q2 384t"."""
        tile = self.tile
        words = [f"{self.schedule} {tile.q}x{tile.kv}x{tile.stages} {tile.threads}t"]
        if tile.q_stages > 1:
            words.append(f"q{tile.q_stages}")
        if tile.q_in_registers:
            words.append("qreg")
        if tile.blocks_per_sm > 1:
            words.append(f"b{tile.blocks_per_sm}")
        if self.toolchain is not None:
            words.append(self.toolchain)
        return " ".join(words)

    def to_json(self) -> dict[str, Any]:
        """JSON values; fields of the tile that have their default are left out."""
        tile = {
            name: value
            for name, value in asdict(self.tile).items()
            if value != _TILE_FIELDS[name].default
        }
        found: dict[str, Any] = {"schedule": self.schedule, "tile": tile}
        if self.toolchain is not None:
            found["toolchain"] = self.toolchain
        return found

    @classmethod
    def from_json(cls, data: object) -> Candidate:
        """The inverse.

        Raises:
            ValueError: it is none; the message says what is wrong.
        """
        if not isinstance(data, dict):
            raise ValueError(f"a kernel is an object, got {data!r}")
        if unknown := data.keys() - {"schedule", "tile", "toolchain"}:
            raise ValueError(f"{sorted(unknown)[0]} is not known")
        schedule, toolchain, tile = (data.get(k) for k in ("schedule", "toolchain", "tile"))
        if not isinstance(schedule, str):
            raise ValueError(f"schedule is {schedule!r}; it takes the name of a kernel family")
        if toolchain is not None and not isinstance(toolchain, str):
            raise ValueError(f"toolchain is {toolchain!r}; it takes a name")
        return cls(schedule, _tile(tile), toolchain)


def _tile(data: object) -> Tile:
    if not isinstance(data, dict):
        raise ValueError(f"tile is {data!r}; it takes an object")
    for name, value in data.items():
        if name not in _TILE_FIELDS:
            raise ValueError(f"tile.{name} is not known; it takes {', '.join(_TILE_FIELDS)}")
        flag = name == "q_in_registers"
        if isinstance(value, bool) != flag or not isinstance(value, int) or value < 0:
            takes = "true or false" if flag else "a whole number"
            raise ValueError(f"tile.{name} is {value!r}; it takes {takes}")
    try:
        return Tile(**data)
    except TypeError:
        missing = [n for n in ("q", "kv", "stages", "threads") if n not in data]
        raise ValueError(f"tile.{missing[0]} is missing") from None
