"""Which of FlashInfer's test files are run, and which of their cases the goal is about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

VERSION = "0.6.18"
COMMIT = "fb28d7242b35"
"""Of the checkout that the names are held against."""

FILES = (
    "attention/test_alibi.py",
    "attention/test_attention_sink.py",
    "attention/test_batch_attention.py",
    "attention/test_batch_decode_kernels.py",
    "attention/test_batch_invariant_fa2.py",
    "attention/test_batch_prefill.py",
    "attention/test_batch_prefill_kernels.py",
    "attention/test_block_sparse.py",
    "attention/test_decode_prefill_lse.py",
    "attention/test_deepseek_mla.py",
    "attention/test_hopper.py",
    "attention/test_logits_cap.py",
    "attention/test_mla_page.py",
    "attention/test_non_contiguous_decode.py",
    "attention/test_non_contiguous_prefill.py",
    "attention/test_page.py",
    "attention/test_shared_prefix_kernels.py",
    "attention/test_single_prefill.py",
    "attention/test_sliding_window.py",
    "attention/test_tensor_cores_decode.py",
    "attention/test_workspace_size.py",
    "utils/test_jit_example.py",
    "utils/test_pod_kernels.py",
    "utils/test_quantization.py",
)
"""Below `tests`: attention on GPUs that there are kernels for, and what goes with it.

Not among them are files of other GPUs and backends (blackwell, cudnn, cute_dsl, trtllm, xqa, vsa,
sm120, ts, fmha_v2, modular), of fp8 and fp4 alone, of several GPUs, and of what is no
attention (test_rope is about rotating tensors in memory).
"""

_DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.int32, torch.int64, torch.bool)
_HEAD_DIMS = (64, 128, 256)
_OTHER_WORDS = ("nvfp4", "fp8", "head_dim_512", "qk448", "large_head", "unequal_kv_strides")


def in_scope(test: str, params: Mapping[str, Any]) -> bool:
    """Whether a case is one of fp16 or bf16, with head_dim 64, 128, 256 or (192, 128).

    Args:
        test: name of the test function.
        params: what it is parametrised with.
    """
    if any(word in test for word in _OTHER_WORDS):
        return False
    for name, value in params.items():
        if isinstance(value, torch.dtype) and value not in _DTYPES:
            return False
        if name.startswith("head_dim") and isinstance(value, int) and value not in _HEAD_DIMS:
            return False
    return True
