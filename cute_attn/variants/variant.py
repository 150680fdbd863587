"""A variant: which keys a query sees and what happens to its scores and its row, as named hooks.

A hook is a Python function, traced, or C++ text. All are functions of true positions, not of
indices into a tile:

    mask       (b, h, q_idx, kv_idx) -> bool           keep the score?
    logits     (score, b, h, q_idx, kv_idx) -> score   on the scaled score, before the mask
    query      (x, b, h, pos) -> x                     on a row of head_dim elements, see `vectors`;
    key        (x, b, h, pos) -> x                       h: the query head, or the KV head
    value      (x, b, h, pos) -> x
    row_state  (lse, b, h, q_idx) -> lse               of a row that has seen all its keys
    output     (out, b, h, q_idx, d) -> out            of an element of such a row

query, key and value are vector hooks, row_state and output are row hooks. `softmax=False` takes
scores as the weights of the values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from cute_attn.variants import analysis, indices, visibility
from cute_attn.variants.band import Band
from cute_attn.variants.blocks import BlockTest, Truths, block_test
from cute_attn.variants.bounds import BoundsMaker
from cute_attn.variants.expression import Expression
from cute_attn.variants.flat import FlatTest, flat_test
from cute_attn.variants.given import bands_of, hook_of
from cute_attn.variants.hook import Hook, both, one_after_the_other
from cute_attn.variants.interval import WHOLE, Interval
from cute_attn.variants.parameters import Parameter, join, made_live, scalars_of, tensors_of
from cute_attn.variants.program import ROLES, ROW_ROLES, VECTOR_ROLES
from cute_attn.variants.scalar import Scalar
from cute_attn.variants.show import show
from cute_attn.variants.tensor import Tensor
from cute_attn.variants.vectors import across


@dataclass(frozen=True, init=False, repr=False)
class Variant:
    """A set of hooks with the parameters they read.

    Attributes:
        name: goes into kernel names; a C identifier.
        mask: hook, or None: every key within the request is visible.
        logits: hook, or None: the scaled score is used as it is. Without softmax it returns the
            weight of the key.
        query, key, value: vector hooks, or None: rows are used as they are.
        scalars: run-time numbers of the hooks.
        band: where keys can be visible at all.
        band_is_mask: True if the mask keeps everything inside the band, so that KV blocks that lie
            inside it need no mask code.
        tensors: run-time tensors of the hooks.
        row_state: hook, or None. Given the log-sum-exp of a row (natural; -inf without keys), it
            returns what the row's weights are to be normalised by: the output is multiplied with
            exp(old - new), and the new one is what `lse` returns.
        output: hook, or None: of the normalised float32 output, before it is rounded.
        softmax: False: the output of a row is the sum of score times value, nothing normalises it.
    """

    name: str
    mask: Hook | None
    logits: Hook | None
    scalars: tuple[Scalar, ...]
    band: Band
    band_is_mask: bool
    tensors: tuple[Tensor, ...]
    query: Hook | None
    key: Hook | None
    value: Hook | None
    row_state: Hook | None
    output: Hook | None
    softmax: bool

    def __init__(
        self,
        name: str,
        mask: Callable[..., Any] | Hook | None = None,
        logits: Callable[..., Any] | Hook | None = None,
        *,
        query: Callable[..., Any] | None = None,
        key: Callable[..., Any] | None = None,
        value: Callable[..., Any] | None = None,
        row_state: Callable[..., Any] | Hook | None = None,
        output: Callable[..., Any] | Hook | None = None,
        softmax: bool = True,
        params: Sequence[Parameter] = (),
        band: Band | None = None,
        band_is_mask: bool | None = None,
    ) -> None:
        """Traces the functions.

        Args:
            name: a C identifier.
            mask: Python function of (b, h, q_idx, kv_idx) and parameters, traced now, or a `Hook`.
            logits: the same of (score, b, h, q_idx, kv_idx).
            query, key, value: Python functions of (x, b, h, pos), x a row: see `vectors`.
            row_state: the same of (lse, b, h, q_idx).
            output: the same of (out, b, h, q_idx, d), d the column of the output.
            softmax: whether weights are the softmax of the scores, or the scores.
            params: scalars and tensors that the hooks read. Traced functions may also declare
                scalars: a further parameter with a default number is one.
            band: of a mask in C++: where keys can be visible, by default everywhere. That of a
                traced mask is derived from it.
            band_is_mask: of a mask in C++: whether it keeps everything inside the band, by default
                False.

        Raises:
            TraceError: a function cannot be traced.
            TypeError, ValueError: naming the argument.
        """
        if not name.isidentifier() or not name.isascii():
            raise ValueError(f"variant name must be a C identifier, got {name!r}")
        for p in params:
            if not isinstance(p, (Scalar, Tensor)):
                raise TypeError(
                    f"params of variant {name!r} has a {type(p).__name__}; it takes Scalar, Tensor"
                )
        parameters = join((), tuple(params))
        hooks: dict[str, Hook | None] = {}
        functions = {
            "mask": mask, "logits": logits, "query": query, "key": key, "value": value,
            "row_state": row_state, "output": output,
        }  # fmt: skip
        for role, given in functions.items():
            hook = hooks[role] = hook_of(name, role, given, parameters)
            if hook is not None and hook.program is not None:
                parameters = join(parameters, hook.program.parameters)
        bands = bands_of(name, hooks["mask"], parameters, band, band_is_mask)
        self._set(name, hooks, softmax, parameters, *bands)

    def _set(
        self,
        name: str,
        hooks: Mapping[str, Hook | None],
        softmax: bool,
        parameters: tuple[Parameter, ...],
        band: Band,
        band_is_mask: bool,
    ) -> Variant:
        if hooks.get("row_state") is not None and not softmax:
            raise ValueError(
                f"variant {name!r} has a row_state hook and softmax=False: weights that nothing"
                " normalises have no log-sum-exp"
            )
        values = {
            "name": name,
            **{role: hooks.get(role) for role in ROLES},
            "scalars": scalars_of(parameters),
            "band": band,
            "band_is_mask": band_is_mask,
            "tensors": tensors_of(parameters),
            "softmax": bool(softmax),
        }
        for field in self.__dataclass_fields__:
            object.__setattr__(self, field, values[field])
        return self

    def __repr__(self) -> str:
        shown = {name: getattr(self, name) for name in self.__dataclass_fields__}
        for name, plain in _PLAIN.items():
            if shown[name] == plain:
                del shown[name]
        return f"Variant({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def hooks(self) -> dict[str, Hook]:
        """The hooks that it has, by role."""
        found = {role: getattr(self, role) for role in ROLES}
        return {role: hook for role, hook in found.items() if hook is not None}

    @property
    def vector_hooks(self) -> dict[str, Hook]:
        """Those of whole rows, by role: "query", "key", "value"."""
        return {role: hook for role, hook in self.hooks.items() if role in VECTOR_ROLES}

    def check_head_dims(self, head_dim_qk: int, head_dim_vo: int) -> None:
        """Raises ValueError if rows of so many elements have not the pairs that a hook takes."""
        for role, hook in self.vector_hooks.items():
            if hook.program is not None and (pairing := across(hook.program.result).pairing):
                pairing.within(head_dim_vo if role == "value" else head_dim_qk)

    @property
    def finish(self) -> Variant | None:
        """What of it concerns rows that have seen all their keys, and the merging of partial
        results; None if nothing does. Equal for variants that differ in other hooks."""
        rows = {role: hook for role, hook in self.hooks.items() if role in ROW_ROLES}
        if not rows and self.softmax:
            return None
        parameters = self.read_by(*rows)
        new = Variant.__new__(Variant)
        return new._set("finish", rows, self.softmax, parameters, Band(), True)

    def read_by(self, *roles: str) -> tuple[Parameter, ...]:
        """The parameters that hooks of these roles read."""
        hooks = [self.hooks[role] for role in roles if role in self.hooks]
        parameters: tuple[Parameter, ...] = (*self.scalars, *self.tensors)
        return tuple(p for p in parameters if any(hook.reads(p.name) for hook in hooks))

    def weights_between(self) -> tuple[float, float] | None:
        """What weights are between, without softmax; None: not known, of a hook in C++."""
        if self.logits is None:
            return WHOLE
        if self.logits.program is None:
            return None
        # Of finite scores and scalars: of what may be infinite hardly a sum is known.
        largest = float(np.finfo(np.float32).max)
        finite: dict[str, Interval] = {"score": (-largest, largest)}
        for s in self.scalars:
            finite[s.name] = max(s.bounds[0], -largest), min(s.bounds[1], largest)
        low, high = self.logits.program.bounds(finite)
        return float(low), float(high)

    def values(self, given: Mapping[str, float | int] | None = None) -> dict[str, float | int]:
        """Scalar values: defaults overlaid with `given`; unknown names and bad values raise."""
        given = dict(given or {})
        values = {s.name: given.pop(s.name, s.default) for s in self.scalars}
        if given:
            known = [s.name for s in self.scalars] or "none"
            raise ValueError(f"variant {self.name!r} has no scalar {list(given)}; it has: {known}")
        for scalar in self.scalars:
            scalar.check(values[scalar.name])
        return values

    def arrays(self, given: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Tensors by name: those captured overlaid with `given`.

        Raises:
            TypeError, ValueError: unknown or missing names, wrong dtypes and shapes.
        """
        given = dict(given or {})
        arrays = {}
        for t in self.tensors:
            default = None if t.captured is None else t.captured.tensor
            arrays[t.name] = given.pop(t.name, default)
            if arrays[t.name] is None:
                raise ValueError(f"variant {self.name!r} reads tensor {t.name!r}: give it")
            t.check(arrays[t.name])
        if given:
            known = [t.name for t in self.tensors] or "none"
            raise ValueError(f"variant {self.name!r} has no tensor {list(given)}; it has: {known}")
        return arrays

    def check_indices(
        self,
        shapes: Mapping[str, Sequence[int]],
        scores: Mapping[str, Interval] | None,
        scalars: Mapping[str, float | int],
        rows: Mapping[str, Interval] | None = None,
    ) -> None:
        """Raises IndexError if a hook may read outside a tensor.

        Args:
            shapes: of the tensors.
            scores: what the arguments of hooks on scores are between; None: there are no scores.
            scalars: values.
            rows: the same of hooks on rows; None: there are no rows.
        """
        left, right = self.band.resolve(scalars)
        points = {name: (float(v), float(v)) for name, v in scalars.items()}
        for role, hook in self.hooks.items():
            leaves = rows if role in ROW_ROLES else scores
            if leaves is None:
                continue
            own = indices.of_role(role, leaves)
            for part in hook.parts or (hook,):
                if part.program is not None:
                    indices.check(part.program, shapes, {**points, **own}, (-right, left))

    def classify(
        self,
        q_idx: tuple[Any, Any],
        kv_idx: tuple[Any, Any],
        scalars: Mapping[str, float | int] | None = None,
        *,
        b: tuple[Any, Any] | None = None,
        h: tuple[Any, Any] | None = None,
    ) -> Any:
        """Which rectangles of scores the mask lets through.

        Args:
            q_idx, kv_idx: first and last positions of the rectangles, integer arrays that
                broadcast.
            scalars: values; defaults where not given.
            b, h: first and last request and query head, by default all.

        Returns:
            int8 array: `analysis.EMPTY` (0), `PARTIAL` (1: some, or not known) or `FULL` (2).
        """
        corners = {"q_idx": q_idx, "kv_idx": kv_idx, "b": b, "h": h}
        values = self.values(scalars)
        return visibility.classify(self.mask, self.band, self.band_is_mask, corners, values)

    @cached_property
    def block_test(self) -> BlockTest | None:
        """What kernels ask about each KV block; None: the band says all that is known."""
        if self.band_is_mask:
            return None
        names = [*(s.name for s in self.scalars), *(t.name for t in self.tensors)]
        return block_test(self.mask, self.scalars, names, self._key_elements)

    @cached_property
    def flat_test(self) -> FlatTest | None:
        """Whether a KV block is flat (`flat`); None: there is nothing to ask, or nothing known."""
        if (test := self.block_test) is not None:
            return None if test.flat is None else FlatTest(test.flat, test.limits)
        maker = BoundsMaker({s.name: s.bounds for s in self.scalars})
        Truths(maker)
        found = flat_test(self._key_elements, maker)
        return None if found is None else FlatTest(found, maker.limits)

    @property
    def _key_elements(self) -> tuple[Expression, ...]:
        """Elements of tensors that traced hooks on scores read at the key's position."""
        programs = [hook.program for role, hook in self.hooks.items() if role in ("mask", "logits")]
        return tuple(
            element
            for program in programs
            if program is not None
            for element in program.stages.elements.values()
        )

    def visible(
        self,
        scalars: Mapping[str, float | int] | None = None,
        expected: Mapping[str, Any] | None = None,
    ) -> Callable[[tuple[Any, Any], tuple[Any, Any], Any], Any] | None:
        """For planning: whether rectangles may have visible scores, for any query head.

        Args:
            scalars: values; defaults where not given.
            expected: arrays that tensors are taken to hold. Of those not given, what is read at
                positions is taken to be numbers of documents (`RangeTable.expected`).

        Returns:
            A function of (first, last) of q_idx, the same of kv_idx, and the request, all integer
            arrays that broadcast. None: the band says all that is known.

        Raises:
            TypeError, ValueError: unknown names in `expected`, wrong dtypes and shapes.
        """
        arrays = {}
        for name, x in (expected or {}).items():
            tensor = next((t for t in self.tensors if t.name == name), None)
            if tensor is None:
                known = [t.name for t in self.tensors] or "none"
                raise ValueError(f"expected has {name!r}; variant {self.name!r} has: {known}")
            tensor.check(x)
            arrays[name] = tensor.elements(x)
        test, values = self.block_test, self.values(scalars)
        if test is None:
            return None
        some = test.visible.some
        if any(t.name in some.reads and t.name not in arrays for t in self.tensors):

            def not_empty(q_idx: tuple[Any, Any], kv_idx: tuple[Any, Any], b: Any) -> Any:
                return self.classify(q_idx, kv_idx, values, b=(b, b)) != analysis.EMPTY

            return not_empty
        return visibility.may_be_visible(test, values, arrays)

    def bake(self, **scalars: float | int) -> Variant:
        """With constants of the kernel in the place of scalars: another value is another kernel,
        which may be faster (a division by a constant is a multiplication or a shift).

        Raises:
            ValueError: unknown names, values that a scalar cannot have, C++ text that reads one.
        """
        values = {name: self.values(scalars)[name] for name in scalars}
        hooks = {role: hook.bake(values) for role, hook in self.hooks.items()}
        left = tuple(s for s in self.scalars if s.name not in values)
        parameters = join(left, self.tensors)
        bands = self.band.bake(values), self.band_is_mask
        mask = hooks.get("mask")
        if mask is not None and mask.program is not None:
            bands = bands_of(self.name, mask, parameters, None, None)
        return Variant.__new__(Variant)._set(self.name, hooks, self.softmax, parameters, *bands)

    def live(self, *names: str) -> Variant:
        """With scalars that a captured CUDA graph does not freeze: kernels read them from device
        memory, which every plan() fills. A load at the begin of a kernel, and a register, for each.

        Args:
            names: of scalars; default: all.

        Raises:
            ValueError: unknown names.
        """
        known = [s.name for s in self.scalars]
        if unknown := sorted(set(names) - set(known)):
            raise ValueError(
                f"variant {self.name!r} has no scalar {unknown}; it has: {known or 'none'}"
            )
        chosen = names or known
        hooks = {role: hook.live(chosen) for role, hook in self.hooks.items()}
        parameters = made_live((*self.scalars, *self.tensors), chosen)
        bands = self.band, self.band_is_mask
        return Variant.__new__(Variant)._set(self.name, hooks, self.softmax, parameters, *bands)

    def show(self) -> str:
        """What became of it, as text: its scalars, the band derived from the mask, and of each hook
        the traced program, its C++ and how many operations of which class it costs.
        """
        return show(self)

    def __and__(self, other: Variant) -> Variant:
        """Both: a key must pass both masks; rows go through the vector hooks of this one, then
        through the other's; only one of the two may have another hook. Without softmax if one of
        them is.

        Raises:
            ValueError: the two cannot be one.
        """
        for role in self.hooks.keys() & other.hooks.keys() - {"mask", *VECTOR_ROLES}:
            what = role.replace("_", " ")
            raise ValueError(f"{self.name!r} and {other.name!r} both transform {what}")
        name, mask = f"{self.name}_{other.name}", both(self.mask, other.mask)
        parameters = join(join(self.scalars, other.scalars), join(self.tensors, other.tensors))
        bands = self.band & other.band, self.band_is_mask and other.band_is_mask
        if mask is not None and mask.program is not None:
            bands = bands_of(name, mask, parameters, None, None)
        hooks = {**self.hooks, **other.hooks, "mask": mask}
        for role in VECTOR_ROLES:
            try:
                hooks[role] = one_after_the_other(getattr(self, role), getattr(other, role))
            except ValueError as error:
                raise ValueError(
                    f"{self.name!r} and {other.name!r} both transform the {role}: {error}"
                ) from None
        softmax = self.softmax and other.softmax
        return Variant.__new__(Variant)._set(name, hooks, softmax, parameters, *bands)


_PLAIN = {
    "tensors": (), "query": None, "key": None, "value": None, "row_state": None, "output": None,
    "softmax": True,
}  # fmt: skip
"""Fields that are not shown where they are this."""
