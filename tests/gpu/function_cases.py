"""Functions of hooks whose errors are measured on a device, each as a variant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cute_attn import KernelSpec, Problem, Variant, choose
from cute_attn.variants import Tensor, functions

DIM = 64


def _as_state(function: Callable[[Any], Any]) -> Variant:
    """The log-sum-exp of the row at -i is the function of x[i], whatever the keys."""

    def of_table(lse: Any, b: Any, h: Any, q_idx: Any, *, x: Any) -> Any:
        return function(x[-q_idx])

    return Variant("of_table", row_state=of_table, params=[Tensor("x", "f32", 1)])


FUNCTIONS = {
    name: _as_state(getattr(functions, name))
    for name in ("sigmoid", "sigmoid2_approx", "sigmoid_approx", "tanh_approx")
}
"""Functions of hooks whose errors are measured, in float32."""


def kernels(arch: str) -> list[KernelSpec]:
    """Those of the tests."""
    problems = (Problem(arch, "bf16", DIM, DIM, 1, v, None) for v in FUNCTIONS.values())
    return [choose(problem, rows=None) for problem in problems]
