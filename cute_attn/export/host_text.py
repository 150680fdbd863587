"""What a host computes from a variant's scalars, as C: limits of the band, factors of scores."""

from __future__ import annotations

from cute_attn.export.errors import BundleError
from cute_attn.variants import Variant
from cute_attn.variants.band import Limit, as_expression
from cute_attn.variants.expression import Expression

_LOG2_E = "1.4426950408889634"
_C = {
    "neg": "(-{})", "add": "({} + {})", "sub": "({} - {})", "mul": "({} * {})",
    "div": "({} / {})", "min": "fmin({}, {})", "max": "fmax({}, {})", "abs": "fabs({})",
    "to_f32": "{}",
}  # fmt: skip


def limit_text(limit: Limit | None) -> str | None:
    """A limit of the band; None: there is none.

    Raises:
        BundleError: it has another form than arithmetic of scalars.
    """
    return None if limit is None else c_text(as_expression(limit))


def scale_texts(variant: Variant) -> tuple[str, str]:
    """The parameters `sm_scale` and `scale_log2` of a variant's kernels, as functions of the
    softmax scale `sm_scale` and the scalars; see `cute_attn.api.parameters`.

    Raises:
        BundleError: a factor has another form than arithmetic of scalars.
    """
    base = _LOG2_E if variant.softmax else "1.0"
    if variant.logits is None:
        return "sm_scale", f"sm_scale * {base}"
    if variant.logits.program is None:
        return "sm_scale", base
    stages = variant.logits.program.stages
    factor = "" if stages.factor is None else f" * {c_text(stages.factor)}"
    exponent = "" if stages.exponent is None else f" * {c_text(stages.exponent)}"
    return f"sm_scale{factor}", f"{base}{exponent}"


def c_text(x: Expression) -> str:
    """An expression of scalars as a C expression of doubles.

    Raises:
        BundleError: it has another form than arithmetic of scalars.
    """
    if x.op == "constant" and not isinstance(x.value, bool):
        return repr(float(x.value))
    if x.op == "scalar":
        return str(x.value)
    if x.op not in _C:
        raise BundleError(
            f"a band or a factor of scores is computed with {x.op!r}; bundles can hold arithmetic"
            " of scalars"
        )
    return _C[x.op].format(*map(c_text, x.args))
