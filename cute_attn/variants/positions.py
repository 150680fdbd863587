"""Built-in variants that transform queries and keys: rotary embedding, normalisation, StreamingLLM.

They are in the language that is there for all, and combine with others by `&`:
`causal() & qk_norm() & rope()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cute_attn.variants.functions import ceil, clamp, exp2, floor, log2, rsqrt, turn, where
from cute_attn.variants.scalar import Scalar
from cute_attn.variants.tensor import Tensor
from cute_attn.variants.variant import Variant

ROPE_LAYOUTS = ("half", "interleaved")


@dataclass(frozen=True)
class LinearScaling:
    """Position interpolation (Chen, Wong, Chen, Tian, arXiv 2306.15595; Hugging Face `rope_type`
    "linear"): positions are divided by `factor`.
    """

    factor: float

    def __post_init__(self) -> None:
        if not 0 < self.factor < math.inf:
            raise ValueError(f"factor is {self.factor}; it takes a positive finite number")


@dataclass(frozen=True)
class Llama3Scaling:
    """Frequencies of Llama 3.1 and later (Hugging Face `rope_type` "llama3"; Grattafiori et al.,
    "The Llama 3 Herd of Models", arXiv 2407.21783).

    Wavelengths up to original_max_position / high_freq_factor stay, those from
    original_max_position / low_freq_factor on become `factor` times as long; between, frequencies
    are mixed, linearly in original_max_position / wavelength.
    """

    factor: float = 8.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 8192

    def __post_init__(self) -> None:
        _at_least_one(self.factor, self.original_max_position)
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor is {self.low_freq_factor} and high_freq_factor"
                f" {self.high_freq_factor}; they take 0 < low_freq_factor < high_freq_factor"
            )


@dataclass(frozen=True)
class YarnScaling:
    """YaRN (Peng, Quesnelle, Fan, Shippole, arXiv 2309.00071; Hugging Face `rope_type` "yarn").

    A pair that turns `beta_fast` times or more within original_max_position keeps its frequency,
    one that turns `beta_slow` times or less has it divided by `factor`; between, they are mixed,
    linearly in the number of the pair (section 3.2). Queries and keys are multiplied by
    `attention_factor`, by default 0.1 ln(factor) + 1 (section 3.4).
    """

    factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    original_max_position: int = 4096
    attention_factor: float | None = None

    def __post_init__(self) -> None:
        _at_least_one(self.factor, self.original_max_position)
        if not 0 < self.beta_slow < self.beta_fast:
            raise ValueError(
                f"beta_slow is {self.beta_slow} and beta_fast {self.beta_fast}; they take"
                " 0 < beta_slow < beta_fast"
            )


def _at_least_one(factor: float, original_max_position: int) -> None:
    if not 1 <= factor < math.inf:
        raise ValueError(f"factor is {factor}; it takes a finite number, at least 1")
    if original_max_position < 1:
        raise ValueError(f"original_max_position is {original_max_position}; it takes 1 or more")


def rope(
    *,
    layout: str = "half",
    theta: float = 10000.0,
    rotary_dim: int | None = None,
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None = None,
    positions: bool = False,
) -> Variant:
    """Rotary position embedding of queries and keys (Su et al., arXiv 2104.09864), fused: the cache
    holds keys as they were before it.

    Pair i of a row at position p is turned by p rope_theta^(-2 i / rotary_dim) radians. Positions
    are those of the mask: a key's is its index in the cache. What is appended to the cache must not
    be rotated as well (`append_paged_kv` without `rope`).

    Args:
        layout: "half" (GPT-NeoX, Llama in Hugging Face): pairs are elements i and i + rotary_dim /
            2; "interleaved" (GPT-J, Llama as published): 2 i and 2 i + 1.
        theta: default of scalar `rope_theta`, the base of the frequencies.
        rotary_dim: leading elements that are rotated, the others stay; None: all. Kernels take
            multiples of 16.
        scaling: of the frequencies, for long contexts. Its numbers are defaults of scalars of
            their names with `rope_` before.
        positions: positions are read from tensors `q_positions` and `k_positions` (requests,
            positions; int32), which are indexed by what would be the positions else.

    Raises:
        TypeError, ValueError: naming the argument.
    """
    if layout not in ROPE_LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it takes one of {', '.join(ROPE_LAYOUTS)}")
    if rotary_dim is not None and (rotary_dim < 2 or rotary_dim % 2):
        raise ValueError(f"rotary_dim is {rotary_dim}; it takes an even number, at least 2")
    frequency, scalars = _frequencies(scaling)
    name = f"rope_{layout}" if scaling is None else f"rope_{layout}_{_SCALINGS[type(scaling)][0]}"

    def rotated(x: Any, position: Any, parameters: dict[str, Any]) -> Any:
        pairs = x.halves(rotary_dim) if layout == "half" else x.neighbours(rotary_dim)
        cosine, sine = turn(position, frequency(pairs, **parameters))
        if "rope_attention_factor" in parameters:
            factor = parameters["rope_attention_factor"]
            cosine, sine = factor * cosine, factor * sine
        return pairs.join(
            pairs.first * cosine - pairs.second * sine, pairs.second * cosine + pairs.first * sine
        )

    def rope(x: Any, b: Any, h: Any, pos: Any, **parameters: Any) -> Any:
        return rotated(x, pos, parameters)

    def rope_of_queries(
        x: Any, b: Any, h: Any, pos: Any, *, q_positions: Any, **parameters: Any
    ) -> Any:
        return rotated(x, q_positions[b, pos], parameters)

    def rope_of_keys(
        x: Any, b: Any, h: Any, pos: Any, *, k_positions: Any, **parameters: Any
    ) -> Any:
        return rotated(x, k_positions[b, pos], parameters)

    base = Scalar("rope_theta", "f32", theta, "base of the frequencies", positive=True)
    params = [base, *scalars]
    if not positions:
        return Variant(name, query=rope, key=rope, params=params)
    comment = "(requests, positions), positions of {}"
    tensors = [
        Tensor("q_positions", "i32", 2, comment.format("queries")),
        Tensor("k_positions", "i32", 2, comment.format("keys")),
    ]
    return Variant(
        f"{name}_at", query=rope_of_queries, key=rope_of_keys, params=[*params, *tensors]
    )


def _plain(pairs: Any, *, rope_theta: Any, **_: Any) -> Any:
    return exp2(-(pairs.index / pairs.count) * log2(rope_theta))


def _linear(pairs: Any, *, rope_theta: Any, rope_factor: Any, **_: Any) -> Any:
    return _plain(pairs, rope_theta=rope_theta) / rope_factor


def _llama3(
    pairs: Any,
    *,
    rope_theta: Any,
    rope_factor: Any,
    rope_low_freq_factor: Any,
    rope_high_freq_factor: Any,
    rope_original_max_position: Any,
    **_: Any,
) -> Any:
    plain = _plain(pairs, rope_theta=rope_theta)
    turns = plain * rope_original_max_position / (2 * math.pi)
    kept = (turns - rope_low_freq_factor) / (rope_high_freq_factor - rope_low_freq_factor)
    kept = clamp(kept, 0.0, 1.0)
    return plain * (kept + (1.0 - kept) / rope_factor)


def _yarn(
    pairs: Any,
    *,
    rope_theta: Any,
    rope_factor: Any,
    rope_beta_fast: Any,
    rope_beta_slow: Any,
    rope_original_max_position: Any,
    **_: Any,
) -> Any:
    plain = _plain(pairs, rope_theta=rope_theta)

    def pair_that_turns(times: Any) -> Any:
        """The pair, a fraction, that turns so often within the original context."""
        longest = rope_original_max_position / (times * (2 * math.pi))
        return pairs.count * log2(longest) / log2(rope_theta)

    first = clamp(floor(pair_that_turns(rope_beta_fast)), 0.0)
    last = clamp(ceil(pair_that_turns(rope_beta_slow)), None, 2 * pairs.count - 1.0)
    width = where(last <= first, 0.001, last - first)
    stretched = clamp((pairs.index - first) / width, 0.0, 1.0)
    return plain * (1.0 - stretched + stretched / rope_factor)


_SCALINGS: dict[type, tuple[str, Callable[..., Any]]] = {
    LinearScaling: ("linear", _linear),
    Llama3Scaling: ("llama3", _llama3),
    YarnScaling: ("yarn", _yarn),
}


def _frequencies(
    scaling: LinearScaling | Llama3Scaling | YarnScaling | None,
) -> tuple[Callable[..., Any], list[Scalar]]:
    """The frequency of a pair in radians per position, and the scalars that it reads."""
    if scaling is None:
        return _plain, []
    if type(scaling) not in _SCALINGS:
        raise TypeError(
            f"scaling is a {type(scaling).__name__}; it takes LinearScaling, Llama3Scaling,"
            " YarnScaling or None"
        )
    values = dict(vars(scaling))
    if isinstance(scaling, YarnScaling) and scaling.attention_factor is None:
        values["attention_factor"] = 0.1 * math.log(scaling.factor) + 1.0
    scalars = [
        Scalar(f"rope_{name}", "f32", float(value), f"of the {_SCALINGS[type(scaling)][0]} scaling",
               positive=True)
        for name, value in values.items()
    ]  # fmt: skip
    return _SCALINGS[type(scaling)][1], scalars


def qk_norm(eps: float = 1e-6) -> Variant:
    """RMS normalisation of every query and key head (Henry et al., arXiv 2010.04245; Qwen 3, Gemma
    3): x / sqrt(mean(x^2) + eps) times a weight for each element.

    Reads tensors `q_norm_weight` and `k_norm_weight` (head_dim,). Before a rotary embedding:
    `qk_norm() & rope()`.

    Args:
        eps: default of scalar `norm_eps`.
    """

    def normalised(x: Any, eps: Any) -> Any:
        return x * rsqrt((x * x).mean() + eps)

    def norm_of_queries(
        x: Any, b: Any, h: Any, pos: Any, *, norm_eps: Any, q_norm_weight: Any
    ) -> Any:
        return normalised(x, norm_eps) * q_norm_weight[x.index]

    def norm_of_keys(x: Any, b: Any, h: Any, pos: Any, *, norm_eps: Any, k_norm_weight: Any) -> Any:
        return normalised(x, norm_eps) * k_norm_weight[x.index]

    params: list[Scalar | Tensor] = [
        Scalar("norm_eps", "f32", eps, "added to the mean of squares", positive=True),
        Tensor("q_norm_weight", "f32", 1, "(head_dim,)"),
        Tensor("k_norm_weight", "f32", 1, "(head_dim,)"),
    ]
    return Variant("qk_norm", query=norm_of_queries, key=norm_of_keys, params=params)


def streaming_llm(*, sinks: int = 4, window: int = 1024, **rope_options: Any) -> Variant:
    """StreamingLLM (Xiao, Tian, Chen, Han, Lewis, arXiv 2309.17453): a query sees the first `sinks`
    keys of the cache and the last `window` up to its own; positions are those within the cache, and
    the rotary embedding by them is fused.

    The caller evicts: a request's page table names the pages of the sinks, then those of the
    window. The first key after the sinks then has position `sinks`, however many tokens ago it was.

    Args:
        sinks, window: defaults of scalars of these names.
        rope_options: of `rope`.
    """

    def sinks_and_window(
        b: Any, h: Any, q_idx: Any, kv_idx: Any, *, sinks: Any, window: Any
    ) -> Any:
        return (kv_idx <= q_idx) & ((kv_idx < sinks) | (kv_idx > q_idx - window))

    params = [
        Scalar("sinks", "i32", sinks, "first keys, which all queries see", lower=0),
        Scalar("window", "i32", window, "keys up to the query's own", lower=1),
    ]
    seen = Variant("streaming", mask=sinks_and_window, params=params)
    return seen & rope(**rope_options)
