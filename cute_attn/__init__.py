"""cute_attn: generated CuTe attention kernels for LLM inference.

Python describes one attention case (architecture, dtypes, head sizes, KV-cache format, variant);
the generator prints a CuTe C++ kernel for exactly that case, NVRTC compiles it, and a
load-balancing scheduler says which thread block does which piece of work. Importing this package
is cheap: nothing heavy is loaded before it is used.
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
