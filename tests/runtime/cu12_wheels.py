"""Put the CUDA 12 compiler wheels in a directory of their own, beside whatever is installed.

``python tests/runtime/cu12_wheels.py DIR`` installs into DIR unless it is complete already and
prints its path; with ``CUTE_ATTN_WHEELS=DIR`` everything compiles with NVRTC 12.9, for example
``CUTE_ATTN_WHEELS=DIR pytest tests/runtime tests/hopper tests/ampere``.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from filelock import FileLock

WHEELS = (
    "nvidia-cuda-nvrtc-cu12==12.9.86",
    "nvidia-cuda-runtime-cu12==12.9.79",
    "nvidia-cuda-cccl-cu12==12.9.27",
    "nvidia-cuda-nvcc-cu12==12.9.86",
)


def install(directory: Path) -> Path:
    """Install `WHEELS` into ``directory`` once; raises CalledProcessError if pip cannot."""
    done = directory / "complete"
    directory.mkdir(parents=True, exist_ok=True)
    with FileLock(directory / "lock"):
        if not done.is_file() or done.read_text() != str(WHEELS):
            target = ["--no-deps", "--upgrade", "--target", str(directory)]
            pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*pip, *target, *WHEELS], check=True, capture_output=True, text=True)
            done.write_text(str(WHEELS))
    return directory


if __name__ == "__main__":
    print(install(Path(sys.argv[1]).absolute()))
