"""The kernel behind `cute_attn.append_paged_kv`: new K and V rows go into a paged cache.

With RoPE the new keys are rotated on the way. The rotation of a pair is position * frequency; in
float32 that product is off by 0.06 radians at position 1,000,000. Here an angle is counted in turns
as a 64-bit binary fraction: position * step wraps around at whole turns by itself and is exact, and
only the remaining fraction of a turn is converted to float32.
"""

from __future__ import annotations

import math
from functools import cache

import numpy as np
import numpy.typing as npt

from cute_attn.abi import Field, ParameterBlock
from cute_attn.codegen.kernels.common import ELEMENTS, TEMPLATES, check, symbol
from cute_attn.codegen.params import cpp_struct
from cute_attn.codegen.render import render
from cute_attn.codegen.source import INCLUDE_DIR, GeneratedKernel

ROPE_STYLES = ("half_split", "interleaved")
"""Which elements turn together: (i, i + head_dim / 2) as in Llama checkpoints of Hugging Face, or
(2 i, 2 i + 1) as in the original Llama and GPT-J."""

_THREADS = 128


@cache
def append_params(rope: bool) -> ParameterBlock:
    """Fields of the kernel; `rope` adds the table of `rope_steps`."""
    steps = Field("rope_steps", "pointer", "(head_dim_qk / 2), 2^-64 turns", "uint64_t const")
    fields = [
        Field("key", "pointer", "(tokens, kv_heads, head_dim_qk)", "Element const"),
        Field("value", "pointer", "(tokens, kv_heads, head_dim_vo)", "Element const"),
        Field("k_cache", "pointer", "(pages, page_size, kv_heads, head_dim_qk)", "Element"),
        Field("v_cache", "pointer", "(pages, page_size, kv_heads, head_dim_vo)", "Element"),
        Field("batch_indices", "pointer", "(tokens), request; negative: skip", "int32_t const"),
        Field("positions", "pointer", "(tokens), position in the request", "int32_t const"),
        Field("page_begin", "pointer", "(requests) offset in page_table, or null", "int32_t const"),
        Field("page_table", "pointer", "page numbers of all requests", "int32_t const"),
        *([steps] if rope else []),
        Field("pages_per_request", "i64", "offset step in page_table if page_begin is null"),
        Field("key_token_stride", "i64", "elements"),
        Field("key_head_stride", "i64", "elements"),
        Field("value_token_stride", "i64", "elements"),
        Field("value_head_stride", "i64", "elements"),
        Field("k_page_stride", "i64", "elements"),
        Field("k_token_stride", "i64", "elements"),
        Field("k_head_stride", "i64", "elements"),
        Field("v_page_stride", "i64", "elements"),
        Field("v_token_stride", "i64", "elements"),
        Field("v_head_stride", "i64", "elements"),
        Field("num_kv_heads", "i32", "KV heads"),
        Field("page_size", "i32", "tokens per page"),
        Field("page_magic", "u32", "token / page_size == umulhi(token, magic) >> shift"),
        Field("page_shift", "i32", "see page_magic; magic 0 means a plain shift"),
    ]  # fmt: skip
    return ParameterBlock(tuple(fields))


def emit_append(
    arch: str, dtype: str, head_dim_qk: int, head_dim_vo: int, rope: str | None = None
) -> GeneratedKernel:
    """Generates the kernel; one block per new token.

    Args:
        arch: "sm_80" ... "sm_90a".
        dtype: of the new rows and of the cache: "bf16" or "fp16".
        head_dim_qk, head_dim_vo: elements of a K and of a V row; multiples of 8.
        rope: None, "half_split" or "interleaved" (`ROPE_STYLES`).

    Raises:
        UnsupportedSpecError: with the reasons.
    """
    dims = {"head_dim_qk": head_dim_qk, "head_dim_vo": head_dim_vo}
    check("append kernel", arch, dtype, ("bf16", "fp16"), dims)
    if rope is not None and rope not in ROPE_STYLES:
        raise ValueError(f"rope is {rope!r}; it takes None, {' or '.join(map(repr, ROPE_STYLES))}")
    if rope == "half_split" and head_dim_qk % 16:
        raise ValueError(f"half_split RoPE needs head_dim_qk % 16 == 0, got {head_dim_qk}")
    params = append_params(rope is not None)
    suffix = f"_{rope}" if rope else ""
    name = symbol(
        f"append_{dtype}_d{head_dim_qk}_{head_dim_vo}{suffix}_{arch}",
        arch, dtype, head_dim_qk, head_dim_vo, rope,
    )  # fmt: skip
    text = render(
        TEMPLATES / "append.cu.jinja",
        name=name,
        params=cpp_struct(params),
        element=ELEMENTS[dtype],
        head_dim_qk=head_dim_qk,
        head_dim_vo=head_dim_vo,
        rope=rope,
        threads=_THREADS,
    )
    return GeneratedKernel(name, text, arch, _THREADS, 0, 1, params, (INCLUDE_DIR,))


def append_grid(num_tokens: int) -> tuple[int, int, int]:
    """Grid for `num_tokens` new tokens."""
    return num_tokens, 1, 1


def rope_steps(
    head_dim: int, *, rope_theta: float = 10000.0, rope_scale: float = 1.0
) -> npt.NDArray[np.uint64]:
    """What one position adds to the angle of each pair, in units of 2^-64 turns.

    Pair i turns by theta^(-2 i / head_dim) / rope_scale radians per position
    (Su et al., "RoFormer", 2021, section 3.4; rope_scale is linear position interpolation).

    Returns:
        (head_dim / 2,) uint64.
    """
    steps = []
    for pair in range(head_dim // 2):
        radians = rope_theta ** (-2.0 * pair / head_dim) / rope_scale
        turns = math.fmod(radians / (2.0 * math.pi), 1.0)
        steps.append(round(math.ldexp(turns, 64)) % (1 << 64))
    return np.array(steps, dtype=np.uint64)
