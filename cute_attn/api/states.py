"""Merging attention states: results over disjoint sets of keys become the result over all."""

from __future__ import annotations

from functools import cache

import torch

from cute_attn.api import checks
from cute_attn.api.dispatch import AMPERE_DECODE, emitter_arch
from cute_attn.api.kernel import Kernel
from cute_attn.api.small_kernels import ready
from cute_attn.codegen.kernels import emit_merge_states, merge_states_grid
from cute_attn.reference import merge_states as reference_merge_states
from cute_attn.runtime.device import device_info


def merge_states(v: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Merges attention states exactly.

    out = sum_i exp(lse_i - lse) v_i and lse = log sum_i exp(lse_i), in index order: the same inputs
    give the same bits. (FlashInfer, arXiv 2501.01005, section 2.2.)

    Args:
        v: (num_states, tokens, num_heads, head_dim): bf16, fp16 or float32; rows may be strided.
        lse: (num_states, tokens, num_heads) float32, natural logarithm; -inf = saw no key.

    Returns:
        out (tokens, num_heads, head_dim) in v's dtype, and lse (tokens, num_heads) float32. Rows
        that no state has seen a key for: out 0, lse -inf.

    Raises:
        TypeError, ValueError: a tensor is wrong.
        RuntimeError: a tensor requires grad while grad mode is on: there is no backward.
    """
    v, lse = checks.from_dlpack(v=v, lse=lse).values()
    if torch.is_grad_enabled():
        checks.no_gradients(v=v, lse=lse)
    if v.dtype not in checks.DTYPE_NAMES:
        raise TypeError(
            f"v has dtype {v.dtype}; it takes {', '.join(map(str, checks.DTYPE_NAMES))}"
        )
    names = ("num_states", "tokens", "num_heads", "head_dim")
    checks.tensor("v", v, dims=[(n, None) for n in names], dtype=v.dtype, device=v.device)
    states, tokens, heads, head_dim = (int(n) for n in v.shape)
    if states == 0:
        raise ValueError(f"v has shape {tuple(v.shape)}; it takes at least one state")
    checks.tensor(
        "lse",
        lse,
        dims=list(zip(names[:3], (states, tokens, heads), strict=True)),
        dtype=torch.float32,
        device=v.device,
    )
    if v.device.type == "cpu":
        wide = v.float() if v.dtype == torch.bfloat16 else v
        out_array, lse_array = reference_merge_states(
            wide.transpose(0, 1).numpy(), lse.transpose(0, 1).numpy()
        )
        return torch.from_numpy(out_array).to(v.dtype), torch.from_numpy(lse_array)
    checks.vector_rows("v", v)
    out = torch.empty((tokens, heads, head_dim), dtype=v.dtype, device=v.device)
    out_lse = torch.empty((tokens, heads), dtype=torch.float32, device=v.device)
    if tokens * heads == 0:
        return out, out_lse
    arch = emitter_arch(device_info(v.device.index).arch, AMPERE_DECODE)
    with torch.cuda.device(v.device):
        kernel = _kernel(arch, checks.DTYPE_NAMES[v.dtype], head_dim)
        arguments = kernel.arguments()
        arguments.set(
            v=v.data_ptr(),
            lse=lse.data_ptr(),
            out=out.data_ptr(),
            out_lse=out_lse.data_ptr(),
            v_state_stride=v.stride(0),
            v_token_stride=v.stride(1),
            v_head_stride=v.stride(2),
            lse_state_stride=lse.stride(0),
            lse_token_stride=lse.stride(1),
            lse_head_stride=lse.stride(2),
            num_rows=tokens * heads,
            num_heads=heads,
            num_states=states,
        )
        grid = merge_states_grid(head_dim, tokens * heads)
        stream = torch.cuda.current_stream(v.device).cuda_stream
        kernel.launch(grid, stream, arguments, v.device.index)
    return out, out_lse


@cache
def _kernel(arch: str, dtype: str, head_dim: int) -> Kernel:
    return ready(emit_merge_states(arch, dtype, head_dim))
