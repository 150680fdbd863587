"""The kernels compile with CUDA 12.9's NVRTC and headers too (the `cu12` extra).

`make test` puts the wheels of that extra into <environment>/cu12, beside the CUDA 13 ones that the
other tests use.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

WHEELS = Path(sys.prefix) / "cu12"

CODE = """
import json, sys
import cute_attn
arch = sys.argv[1]
problem = cute_attn.Problem(
    arch=arch, dtype="fp16", head_dim_qk=64, head_dim_vo=64, group=4,
    variant=cute_attn.causal(), page_size=16,
)
kernel = cute_attn.build(cute_attn.choose(problem, rows=None))
print(json.dumps({"toolchain": kernel.compiled.toolchain.name, "lint": kernel.lint()}))
"""


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_kernel_compiles_with_cuda_12(tmp_path: Path, arch: str) -> None:
    if not WHEELS.is_dir():
        assert not os.environ.get("CI"), f"`make test` should have made {WHEELS}"
        pytest.skip(f"no CUDA 12 wheels in {WHEELS}; `make test` puts them there")
    result = subprocess.run(
        [sys.executable, "-c", CODE, arch],
        env=os.environ
        | {
            "CUTE_ATTN_WHEELS": str(WHEELS),
            "CUTE_ATTN_TOOLCHAIN": "nvrtc",
            "CUTE_ATTN_CACHE_DIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    answer = json.loads(result.stdout)
    assert answer["toolchain"].startswith("nvrtc-12.")
    assert answer["lint"] == []
