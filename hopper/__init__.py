"""The Hopper emitter: TMA, mbarrier pipelines, warp-specialised `wgmma` kernels (sm_90a)."""

if __name__ != "cute_attn.hopper":
    raise ImportError("this directory is the package cute_attn.hopper; import it by that name")

from cute_attn.hopper import emit_mla as mla
from cute_attn.hopper.emit import SCHEDULE, emit, include_dirs, params_of, supports
from cute_attn.hopper.equations import bytes_in_flight
from cute_attn.hopper.fp8_tiles import rate as e4m3_rate
from cute_attn.hopper.tiles import FEW_ROWS, default_tile, head_dims, long_keys

__all__ = [
    "FEW_ROWS",
    "SCHEDULE",
    "bytes_in_flight",
    "default_tile",
    "e4m3_rate",
    "emit",
    "head_dims",
    "include_dirs",
    "long_keys",
    "mla",
    "params_of",
    "supports",
]
