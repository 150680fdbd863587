"""Cubin to SASS with nvdisasm: from the wheel ``nvidia-cuda-nvdisasm`` (extra ``sass``) or from
PATH.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from pathlib import Path

from cute_attn.runtime.errors import ToolchainError
from cute_attn.runtime.toolchain import site_dirs

_IN_WHEELS = ("nvidia/cu13/bin/nvdisasm", "nvidia/cuda_nvdisasm/bin/nvdisasm")
_INSTRUCTION = re.compile(
    r"^\s*(?:/\*[0-9a-f]{4,}\*/)?\s*(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)(?=[. ;])"
)


def find_nvdisasm() -> Path | None:
    """The newest place that has one: wheels, then PATH."""
    for root in site_dirs():
        for relative in _IN_WHEELS:
            if (root / relative).is_file():
                return root / relative
    on_path = shutil.which("nvdisasm")
    return Path(on_path) if on_path else None


def disassemble(cubin: bytes) -> str:
    """SASS text of a cubin.

    Raises:
        ToolchainError: no nvdisasm, or it is too old for the cubin.
    """
    tool = find_nvdisasm()
    if tool is None:
        raise ToolchainError(
            'no nvdisasm: pip install "cute-attn[sass]" (wheel nvidia-cuda-nvdisasm)'
        )
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(tool), "--print-code", file.name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolchainError(f"{tool} failed: {done.stderr.strip() or done.returncode}")
    return done.stdout


def count_opcodes(sass: str) -> Counter[str]:
    """How often each instruction occurs, by base name: ``{"HGMMA": 32, "LDGSTS": 8, ...}``."""
    return Counter(
        match[1] for line in sass.splitlines() if (match := _INSTRUCTION.match(line)) is not None
    )
