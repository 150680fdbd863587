"""Bundles: compiled kernels with all that a program needs to plan and launch them without Python.

    export_bundle("llama.bundle", [Problem("sm_90a", "bf16", 128, 128, 4, causal(), 16)])
    bundle = load_bundle("llama.bundle")

A bundle is a folder: `manifest.json` (its schema beside it), `bundle.h` with the same facts as C
tables, a planner in C++, and per kernel the cubin and its source. See docs/export.md.
"""

from cute_attn.export.errors import BundleError
from cute_attn.export.load import Bundle, load_bundle
from cute_attn.export.manifest import ABI_VERSION, Manifest
from cute_attn.export.write import export_bundle

__all__ = ["ABI_VERSION", "Bundle", "BundleError", "Manifest", "export_bundle", "load_bundle"]
