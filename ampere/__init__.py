"""The Ampere emitter: `cp.async` pipelines, `ldmatrix` and `mma.sync` kernels.

For sm_80, sm_86 and sm_89; the same kernels also build for sm_90.
"""

if __name__ != "cute_attn.ampere":
    raise ImportError("this directory is the package cute_attn.ampere; import it by that name")

from cute_attn.ampere.common import include_dirs
from cute_attn.ampere.emit import emit, supports
from cute_attn.ampere.tiles import (
    DECODE_ROWS,
    TILES_PER_SM,
    bytes_in_flight,
    decode_rows,
    tile_row,
    tiles,
)

__all__ = [
    "DECODE_ROWS",
    "TILES_PER_SM",
    "bytes_in_flight",
    "decode_rows",
    "emit",
    "include_dirs",
    "supports",
    "tile_row",
    "tiles",
]
