"""Kernel specs and source generation: a `KernelSpec` goes in, CuTe C++ text comes out.

Architecture-neutral pieces live here; `cute_attn.hopper` and `cute_attn.ampere` hold the two
emitters.
"""

if __name__ != "cute_attn.codegen":
    raise ImportError("this directory is the package cute_attn.codegen; import it by that name")
