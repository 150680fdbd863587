"""The Hopper kernels compile for sm_90a with a clean log, to the instructions that were meant."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from cute_attn import hopper
from cute_attn.codegen.spec import KernelSpec
from cute_attn.runtime import CompiledKernel, CompileRequest, build_kernel, count_opcodes
from cute_attn.variants import (
    Hook,
    Tensor,
    Variant,
    alibi,
    attention_sinks,
    causal,
    chunked_local,
    document_mask,
    full,
    prefix_lm,
    qk_norm,
    relative_bias,
    rope,
    sigmoid_attention,
    sliding_window,
    soft_cap,
    streaming_llm,
)

Dims = int | tuple[int, int]  # head_dim, or (head_dim_qk, head_dim_vo)


def build(
    dims: Dims,
    dtype: str,
    loader: str,
    group: int,
    variant: Variant,
    *,
    rows: int | None = None,
    long: bool = False,
) -> CompiledKernel:
    """`loader`: may have a page size behind it, "paged16"."""
    qk, vo = (dims, dims) if isinstance(dims, int) else dims
    loader, digits = loader.rstrip("0123456789"), loader.strip("adeghprt")
    page_size = int(digits) if digits else None
    tile = hopper.default_tile(qk, vo, loader, variant, rows=rows, page_size=page_size, long=long)
    assert tile is not None
    kernel = hopper.emit(
        KernelSpec("sm_90a", "hopper_tile", dtype, qk, vo, loader, group, variant, tile)
    )
    return build_kernel(
        CompileRequest(kernel.text, kernel.name, kernel.arch, kernel.include_dirs, ())
    )


def assert_clean(kernel: CompiledKernel) -> None:
    """No spills, no stack frame, no serialised wgmma, no ignored setmaxnreg."""
    assert kernel.resources.lint() == []
    threads = int(re.findall(r"kThreads = (\d+);", kernel.request.source)[0])
    # What so many threads can start with.
    assert kernel.resources.registers == {256: 240, 384: 168, 512: 128}[threads]


def scaled() -> Variant:
    def scaled(out: Any, b: Any, h: Any, q_idx: Any, d: Any, *, scale: Any) -> Any:
        return out * scale[h, d]

    return Variant("scaled", output=scaled, params=[Tensor("scale", "f32", 2)])


SINKS, SIGMOID = causal() & attention_sinks(), causal() & sigmoid_attention(4096)

FIRST_AND_NEAR = Variant(
    "first_and_near", mask=lambda b, h, q, k, *, n=4, w=64: (k <= q) & ((k < n) | (k > q - w))
)

REPRESENTATIVE = [
    (128, "bf16", "ragged", 1, full()),
    (128, "fp16", "paged", 4, causal()),
    (64, "bf16", "gather", 3, causal() & sliding_window()),
    (128, "bf16", "paged16", 4, causal()),
    (128, "bf16", "gather", 1, full()),
    (256, "bf16", "gather", 4, causal()),
    (256, "bf16", "paged", 2, causal()),
    (80, "fp16", "gather", 1, full()),
    ((192, 128), "bf16", "paged", 1, causal()),
    (256, "bf16", "ragged", 5, full()),
    (128, "bf16", "ragged", 1, SINKS),
    (128, "bf16", "ragged", 1, SIGMOID),
    (128, "fp16", "paged16", 4, SINKS & scaled()),
    (256, "bf16", "gather", 4, SIGMOID),
]
SKIPPING = [
    (128, "bf16", "ragged", 4, prefix_lm()),
    (128, "bf16", "paged16", 3, prefix_lm() & alibi(8)),
    (64, "bf16", "gather", 3, FIRST_AND_NEAR),
    (256, "fp16", "paged", 4, FIRST_AND_NEAR),
    ((192, 128), "bf16", "ragged", 1, causal() & chunked_local()),
    (128, "bf16", "ragged", 1, causal() & document_mask()),
    (128, "bf16", "paged16", 4, causal() & document_mask()),
]
FEW_ROWS = [
    (64, "bf16", "gather", 3, causal() & sliding_window()),
    (128, "bf16", "paged16", 8, causal()),
    (128, "fp16", "ragged", 1, causal() & soft_cap()),
    (128, "bf16", "paged16", 8, FIRST_AND_NEAR),
    ((192, 128), "bf16", "paged", 1, causal()),
    (256, "bf16", "gather", 4, causal()),
    (128, "bf16", "paged16", 4, SINKS & scaled()),
    (128, "bf16", "ragged", 1, SIGMOID),
]
MATRIX = [
    (dims, dtype, loader, 4, variant)
    for dims in hopper.head_dims()
    for dtype in ("bf16", "fp16")
    for loader in ("ragged", "paged", "paged16", "gather")
    for variant in (full(), causal())
] + [
    (dims, "bf16", loader, group, variant)
    for dims in hopper.head_dims()
    for loader in ("ragged", "paged", "paged16", "gather")
    for variant in (
        causal() & sliding_window(),
        causal() & soft_cap(),
        causal() & sliding_window() & attention_sinks(),
        SIGMOID,
        prefix_lm(),
        FIRST_AND_NEAR,
    )
    for group in (1, 3)
]


WITH_VECTORS = [
    (128, "bf16", "ragged", 1, causal() & rope()),
    (128, "bf16", "paged16", 4, causal() & rope()),
    (128, "fp16", "gather", 3, causal() & qk_norm() & rope()),
    (64, "bf16", "paged16", 4, streaming_llm()),
    (256, "bf16", "ragged", 4, causal() & rope()),
]
VECTORS_MATRIX = [
    (dims, "bf16", loader, group, variant)
    for dims in hopper.head_dims()
    for loader, group in (("ragged", 1), ("paged16", 4), ("gather", 3))
    for variant in (
        causal() & rope(),
        causal() & qk_norm() & rope(positions=True),
        streaming_llm(),
        causal() & soft_cap() & rope(layout="interleaved", rotary_dim=32),
    )
]


def name(case: object) -> str:
    return case.name if isinstance(case, Variant) else str(case)


@pytest.mark.parametrize(
    "case", REPRESENTATIVE + SKIPPING, ids=lambda c: "-".join(name(x) for x in c)
)
def test_compiles_clean(case: tuple[Dims, str, str, int, Variant]) -> None:
    assert_clean(build(*case))


@pytest.mark.parametrize("case", WITH_VECTORS, ids=lambda c: "-".join(name(x) for x in c))
def test_vector_hooks_compile_clean(case: tuple[Dims, str, str, int, Variant]) -> None:
    assert_clean(build(*case))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, hopper.FEW_ROWS])
@pytest.mark.parametrize("case", VECTORS_MATRIX, ids=lambda c: "-".join(name(x) for x in c))
def test_matrix_of_vector_hooks_compiles_clean(
    case: tuple[Dims, str, str, int, Variant], rows: int | None
) -> None:
    assert_clean(build(*case, rows=rows))


@pytest.mark.parametrize("case", FEW_ROWS, ids=lambda c: "-".join(name(x) for x in c))
def test_few_rows_compile_clean(case: tuple[Dims, str, str, int, Variant]) -> None:
    assert_clean(build(*case, rows=hopper.FEW_ROWS))


@pytest.mark.slow
@pytest.mark.parametrize("rows", [None, hopper.FEW_ROWS])
@pytest.mark.parametrize("case", MATRIX, ids=lambda c: "-".join(name(x) for x in c))
def test_matrix_compiles_clean(case: tuple[Dims, str, str, int, Variant], rows: int | None) -> None:
    assert_clean(build(*case, rows=rows))


def of_chunks(b: Any, h: Any, q_idx: Any, kv_idx: Any, *, table: Any) -> Any:
    return (kv_idx <= q_idx) & (table[h, kv_idx // 64] > 0.5)


@pytest.mark.parametrize(
    "mask",
    [
        Variant("thirds", mask=Hook("thirds", "kv_idx % 3 != 1 || kv_idx == q_idx")),
        Variant("of_chunks", mask=of_chunks, params=[Tensor("table", "f32", 2)]),
    ],
    ids=lambda mask: mask.name,
)
def test_flat_blocks_beside_masks_that_say_nothing_of_blocks(mask: Variant) -> None:
    """Nothing walks over visible blocks; which ones are flat a function of its own says."""
    variant = mask & relative_bias(16)
    assert variant.block_test is None and not variant.band_is_mask
    assert_clean(build(128, "bf16", "ragged", 1, variant))


def test_sass_is_what_was_meant() -> None:
    kernel = build(128, "bf16", "ragged", 1, full())
    opcodes = count_opcodes(kernel.sass)
    # QK before the first item, for an item's second block, in the step, for the next item and after
    # an item without keys; PV in the step, alone where the scores are there, and at the end: 8
    # k-steps of 16 each.
    assert opcodes["HGMMA"] == (5 + 3) * 8
    assert "HMMA" not in opcodes
    assert opcodes["UTMALDG"] > 0 and "LDGSTS" not in opcodes  # Q, K and V by TMA
    assert opcodes["USETMAXREG"] == 2
    assert "LDL" not in opcodes and "STL" not in opcodes


def test_a_row_s_turns_come_from_the_rows_before() -> None:
    """Cosines and sines are computed for one row of a thread; of every other one, a pair takes four
    multiplications and sums for them, beside the four that turn it."""
    sass = build(128, "bf16", "ragged", 1, causal() & rope()).sass
    # Four pairs of Q, and of K at an item's first block and at later ones.
    assert len(re.findall(r"MUFU\.COS", sass)) == 3 * 4
    found = []
    for loop in re.split(r"(?m)^\.L_x_\d+:$", sass):
        opcodes = count_opcodes(loop)
        if opcodes["LDS"] and opcodes["STS"] and not opcodes["MUFU"] and opcodes["FFMA"]:
            found.append((opcodes["FFMA"] + opcodes["FMUL"], opcodes["F2FP"]))
    # Rows are packed two elements at a time.
    assert any(packs >= 8 and 7 * packs <= adds <= 8 * packs for adds, packs in found)


def test_products_have_the_true_width() -> None:
    """80: five k-steps of QK and a PV of 80 columns; only shared memory is padded."""
    sass = build(80, "fp16", "gather", 1, full()).sass
    widths = Counter(re.findall(r"HGMMA\.64x(\d+)x16", sass))
    # QK five times, PV three times (see above): 128 keys.
    assert widths == {"128": 5 * 80 // 16, "80": 3 * 128 // 16}


def test_gather_copies_are_plain() -> None:
    """Two copies a row of 256 bytes, whose address comes by shuffle; nothing is predicated."""
    kernel = build(128, "bf16", "gather", 3, full())  # queries by cp.async, too
    copies = re.findall(r"^.*LDGSTS.*$", kernel.sass, re.MULTILINE)
    # Q; K; V in the loop and at the end of an item: 128 rows each; 2 chunks, 8 rows a pass. The
    # paths of diverged warps repeat some.
    passes = 4 * 128 // 8
    assert 2 * passes <= len(copies) < 2 * passes * 9 // 8
    assert all("@" not in copy.split("LDGSTS")[0] and "!P" not in copy for copy in copies)
    opcodes = count_opcodes(kernel.sass)
    assert opcodes["ARRIVES"] == 4  # at the full barrier, when the copies have landed
    assert "UTMALDG" not in opcodes


@pytest.mark.parametrize(
    ("dims", "loader", "group", "variant", "copies"),
    [
        (128, "ragged", 1, full(), 1),
        (128, "ragged", 1, causal(), 1),
        (128, "paged", 4, causal(), 1),
        (128, "paged16", 4, causal(), 2),
        (64, "ragged", 1, causal(), 2),
        (256, "ragged", 1, causal(), 1),
    ],
)
def test_descriptors_stay_in_uniform_registers(
    dims: Dims, loader: str, group: int, variant: Variant, copies: int
) -> None:
    """In the main loops: computed per lane, they would come over by R2UR, 48 or 64 a step."""
    sass = build(dims, "bf16", loader, group, variant).sass
    steps = [count_opcodes(loop) for loop in loops(sass)]
    assert len(steps) == copies
    assert all(opcodes["R2UR"] <= 4 for opcodes in steps)


@pytest.mark.parametrize("dims", [64, 128, 256])
@pytest.mark.parametrize("variant", [full(), causal()], ids=lambda v: v.name)
def test_references_lie_in_different_banks(dims: int, variant: Variant) -> None:
    """Exponentials of the two rows alternate: each reference is kept for the next of its row.

    In one bank of the register file they replace each other (kernels had 2 to 3 % by this chance).
    """
    steps = loops(build(dims, "bf16", "ragged", 1, variant).sass)
    assert steps
    for step in map(without_second_pass, steps):
        references = re.findall(r"FFMA R\d+, R\d+, UR\d+, -R(\d+)(\.reuse)?", step)
        assert len({int(register) % 2 for register, _ in references}) == 2
        assert sum(bool(kept) for _, kept in references) > 0.6 * len(references) > 10


@pytest.mark.parametrize("variant", [causal(), causal() & sliding_window()], ids=lambda v: v.name)
@pytest.mark.parametrize("group", [1, 4])
def test_three_consumers_with_a_mask_fit_their_registers(variant: Variant, group: int) -> None:
    """128 of 160 registers are fragments."""
    kernel = build(64, "bf16", "ragged", group, variant, long=True)
    assert kernel.resources.lint() == [] and kernel.resources.registers == 128


@pytest.mark.parametrize("dims", [64, 128, (192, 128), 256])
@pytest.mark.parametrize("variant", [full(), causal()], ids=lambda v: v.name)
def test_a_step_looks_for_no_maximum(dims: Dims, variant: Variant) -> None:
    """Only the second pass of a block does, where a score stands out."""
    for step in loops(build(dims, "bf16", "ragged", 1, variant).sass):
        usual = count_opcodes(without_second_pass(step))
        assert usual["MUFU"] == 2 * usual["F2FP"] >= 32  # each score once, packed in pairs
        assert usual["FMNMX"] == 0 and count_opcodes(step)["FMNMX"] > 0


@pytest.mark.parametrize("dims", [64, 128])
def test_a_sigmoid_takes_one_mufu_operation(dims: int) -> None:
    """As a softmax does; there is no second pass, and no maximum but that of the exponent."""
    (step,) = loops(build(dims, "bf16", "ragged", 1, sigmoid_attention(4096)).sass)
    opcodes = count_opcodes(step)
    assert opcodes["MUFU"] == 2 * opcodes["F2FP"] >= 32
    assert opcodes["FMNMX"] == opcodes["MUFU"]


@pytest.mark.parametrize("dims", [64, 128, 256])
def test_sinks_change_no_loop(dims: int) -> None:
    with_sinks, plain = (
        [count_opcodes(step) for step in loops(build(dims, "bf16", "ragged", 1, v).sass)]
        for v in (SINKS, causal())
    )
    assert with_sinks == plain


@pytest.mark.parametrize(
    ("dims", "loader", "variant", "long"),
    [
        (64, "ragged", causal() & scaled(), True),
        (128, "gather", causal() & soft_cap() & attention_sinks() & scaled(), False),
        (256, "ragged", SIGMOID & scaled(), False),
    ],
)
def test_output_hooks_spill_in_no_loop(
    dims: Dims, loader: str, variant: Variant, long: bool
) -> None:
    """Addresses of tensors at the end of an item may cost the rest of the kernel a few registers,
    which are stored once an item."""
    kernel = build(dims, "bf16", loader, 4, variant, long=long)
    assert kernel.resources.spill_store_bytes <= 64
    reasons = kernel.resources.lint()
    assert all(reason.startswith(("spills", "stack frame")) for reason in reasons)
    for step in loops(kernel.sass):
        assert not {"LDL", "STL"} & count_opcodes(step).keys()


def without_second_pass(step: str) -> str:
    """A step without what it does only where a score stands out: from the branch around the search
    for the maximum to where that leads."""
    lines = step.splitlines()
    first = next(i for i, line in enumerate(lines) if "FMNMX" in line)
    branch = max(i for i, line in enumerate(lines[:first]) if "BRA" in line)
    label = re.findall(r"\((\.L_x_\d+)\)", lines[branch])[0]
    return "\n".join([*lines[:branch], *lines[lines.index(f"{label}:") :]])


def loops(sass: str) -> list[str]:
    """The innermost loops around products: from a label to the branch back to it, no other such
    branch back between."""
    labels: dict[str, int] = {}
    lines, last, found = sass.splitlines(), 0, []
    for number, line in enumerate(lines):
        if label := re.match(r"(\.L_x_\d+):", line):
            labels[label[1]] = number
        elif (branch := re.search(r"BRA.*`\((\.L_x_\d+)\)", line)) and branch[1] in labels:
            loop = lines[labels[branch[1]] : number + 1]
            if not any("HGMMA" in inner for inner in loop):
                continue
            if labels[branch[1]] >= last:
                found.append("\n".join(loop))
            last = number
    return found
