"""The other end of `pool`: a process that compiles what arrives on its stdin.

Messages are pickles behind an 8-byte length. A request comes as ``(CompileRequest, use_pch)``, a
`CompiledKernel` or an exception goes back. The process ends with its stdin, so it cannot outlive
its parent by more than one compile.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
from pathlib import Path
from typing import IO

from cute_attn.runtime.build import build_kernel
from cute_attn.runtime.compiler import CompileRequest
from cute_attn.runtime.nvrtc import load_nvrtc
from cute_attn.runtime.toolchain import default_toolchain

# CuTe's headers need about 300 MB; with too small a heap NVRTC compiles twice and keeps nothing.
PCH_HEAP_BYTES = 1 << 30


def send(stream: IO[bytes], message: object) -> None:
    data = pickle.dumps(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> object:
    """The next message; raises EOFError when the other side is gone."""
    header = stream.read(8)
    if len(header) < 8:
        raise EOFError
    data = stream.read(int.from_bytes(header, "little"))
    return pickle.loads(data)


def main() -> None:
    """Serve until stdin ends; ``sys.argv[1]`` is the directory for precompiled headers."""
    pch_dir = Path(sys.argv[1])
    # Whatever prints must not end up between two messages.
    outbox = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    logging.getLogger("cute_attn").addHandler(logging.NullHandler())  # the parent reports
    logging.getLogger("cute_attn").propagate = False
    heap_set: set[Path] = set()
    while True:
        try:
            message = receive(sys.stdin.buffer)
        except EOFError:
            return
        assert isinstance(message, tuple)
        request, use_pch = message
        try:
            send(outbox, _build(request, pch_dir if use_pch else None, heap_set))
        except Exception as error:
            send(outbox, error)


def _build(request: CompileRequest, pch_dir: Path | None, heap_set: set[Path]) -> object:
    if pch_dir is not None:
        tools = (request.toolchain or default_toolchain()).tools
        if tools is not None and tools.nvrtc not in heap_set:
            load_nvrtc(tools.nvrtc).set_pch_heap(PCH_HEAP_BYTES)
            heap_set.add(tools.nvrtc)
    return build_kernel(request, pch_dir=pch_dir)
