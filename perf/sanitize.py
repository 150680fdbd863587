"""compute-sanitizer over a small subset of the GPU tests.

    python -m perf.sanitize [--tool memcheck|racecheck|synccheck|initcheck] [--match EXPRESSION]

Exit status 0: clean. Lengths are cut, so that a slow tool ends in minutes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

ERROR_STATUS = 99


def find_sanitizer() -> str | None:
    """Path of compute-sanitizer, or None."""
    usual = "/usr/local/cuda/bin/compute-sanitizer"
    return shutil.which("compute-sanitizer") or (usual if os.access(usual, os.X_OK) else None)


def command(tool: str, match: str) -> list[str]:
    """What is run."""
    sanitizer = find_sanitizer()
    if sanitizer is None:
        raise FileNotFoundError("compute-sanitizer is not on PATH (it comes with CUDA toolkits)")
    return [
        sanitizer, f"--tool={tool}", f"--error-exitcode={ERROR_STATUS}",
        "--target-processes=application-only", "--print-limit=20",
        sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider",
        "tests/gpu/test_sanitized.py", "-k", match,
    ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tool", default="memcheck")
    parser.add_argument("--match", default="test_small", help="pytest -k expression")
    options = parser.parse_args()
    # The caching allocator hides reads past the end of a tensor.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(command(options.tool, options.match), env=environment, check=False)
    print(f"compute-sanitizer {options.tool}: exit status {done.returncode}")
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
