"""Attention: both ways against the definition on blocks and their edges, masks, layouts; and against torch."""

import doctest
from pathlib import Path

import numpy as np
import pytest
from helpers import FLOATS, caller_array, forced, has_module, printed_with_threads, to_float64

import numbaprims
from numbaprims.cpu import target

TOLERANCE = {"f64": 1e-13, "f32": 3e-6, "f16": 2e-3, "bf16": 2e-2}
SOLVERS = ("flash", "flash_amx", "decode", "naive")


def masks(rng, kind, batch, heads, rows, keys):
    if kind == "bool":
        mask = rng.random((rows, keys)) < 0.6
        mask[0] = False  # a row to which nothing is open
        return mask
    if kind == "padding":
        return np.arange(keys) < rng.integers(1, keys + 1, (batch, 1, 1, 1))
    return rng.standard_normal((batch, 1, rows, keys)) if kind == "float" else None


def check(rng, sizes, dtype="f32", mask="", causal=False, algorithm="", layout=lambda x: x):
    """out, lse and gradients of (batch, heads, groups, rows, keys, width, values)."""
    batch, heads, groups, rows, keys, width, values = sizes

    def draw(*shape):
        return layout(caller_array(rng.standard_normal(shape), dtype))

    q, k = draw(batch, heads, rows, width), draw(batch, groups, keys, width)
    v, dout = draw(batch, groups, keys, values), draw(batch, heads, rows, values)
    words = {"mask": masks(rng, mask, batch, heads, rows, keys), "causal": causal}
    if mask == "float":
        words["mask"] = caller_array(words["mask"], dtype)
    with numbaprims.config(device="reference"):
        # operands as they are; the definition rounds its results once
        out, lse = numbaprims.attention_train(q, k, v, **words)
        wanted = [out, out, lse, *numbaprims.attention_backward(dout, q, k, v, out, lse, **words)]
    with forced("attention", algorithm):
        found = [numbaprims.attention(q, k, v, **words)]
        if algorithm != "decode":
            found += numbaprims.attention_train(q, k, v, **words)
        if algorithm not in ("decode", "flash_amx"):
            found += numbaprims.attention_backward(dout, q, k, v, out, lse, **words)
    for at, (have, want) in enumerate(zip(found, wanted, strict=False)):
        have, want = to_float64(have), to_float64(want)
        closed = np.isinf(want)
        assert (np.isneginf(have) == closed).all() and (at == 2 or not closed.any())
        have, want = np.where(closed, 0.0, have), np.where(closed, 0.0, want)
        most = TOLERANCE["f32" if at == 2 and dtype != "f64" else dtype] * max(1.0, np.abs(want).max(initial=0.0))
        assert np.abs(have - want).max(initial=0.0) <= most, f"result {at}"


#: One of everything, below a vector, whole tiles, behind their edges, more than a block of queries, wide.
SIZES = [
    (1, 1, 1, 1, 1, 1, 1), (2, 3, 3, 5, 7, 8, 3), (1, 2, 2, 64, 64, 64, 64), (1, 4, 2, 33, 67, 24, 40),
    (1, 2, 1, 250, 130, 17, 33), (1, 1, 1, 35, 20, 130, 70),
]  # fmt: skip


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("mask", ["", "bool", "padding", "float"])
def test_blocks_and_masks(rng, sizes, mask, request):
    """In f64 each solver takes the masks that the other does not: a mask is read alike in both."""
    solver = "naive" if sizes[3] < 100 else "flash"
    wide = request.config.option.slow or (solver == "naive") == (mask in ("", "float"))
    for causal in (False, True):
        check(rng, sizes, mask=mask, causal=causal)
        if sizes != SIZES[0] and wide:
            check(rng, sizes, "f64", mask, causal, solver)


@pytest.mark.parametrize("dtype", FLOATS)
def test_types(rng, dtype):
    if dtype == "bf16" and not has_module("ml_dtypes"):
        pytest.skip("NumPy has no bfloat16")
    check(rng, (2, 4, 2, 37, 70, 20, 33), dtype, "float", True)
    check(rng, (2, 4, 2, 1, 300, 20, 33), dtype, "float", algorithm="decode")


@pytest.mark.skipif(not has_module("ml_dtypes"), reason="NumPy has no bfloat16")
@pytest.mark.skipif(not target.current().has_fma, reason="tiles are of fused multiply-adds")
@pytest.mark.parametrize("mask", ["", "bool", "padding", "float"])
def test_tiles(rng, mask):
    """Blocks, edges and masks as those of vectors; heads behind and columns, whose packing is another."""
    for sizes in SIZES:
        for causal in (False, True):
            check(rng, sizes, "bf16", mask, causal, "flash_amx")
    for layout in ("heads behind", "columns", "apart"):
        check(rng, (2, 4, 2, 37, 300, 20, 33), "bf16", mask, True, "flash_amx", LAYOUTS[layout])


@pytest.mark.parametrize("queries", [(1, 1), (1, 4), (3, 2), (5, 3)], ids=str)
def test_few_queries(rng, queries):
    rows, share = queries
    for mask in ("", "bool", "padding", "float"):
        for keys, width, values in ((1, 5, 3), (255, 64, 64), (1100, 33, 70)):
            check(rng, (2, 2 * share, 2, rows, keys, width, values), mask=mask, algorithm="decode")


LAYOUTS = {
    "heads behind": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "columns": lambda x: np.asfortranarray(x),
    "apart": lambda x: np.repeat(x, 2, -1)[..., ::2],
    "backwards": lambda x: x[:, ::-1, ::-1, ::-1].copy()[:, ::-1, ::-1, ::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(rng, layout):
    check(rng, (2, 4, 2, 37, 70, 20, 33), mask="bool", causal=True, layout=LAYOUTS[layout])
    check(rng, (2, 4, 2, 1, 70, 20, 33), layout=LAYOUTS[layout])


@pytest.mark.cpu
def test_few_queries_take_keys_where_they_lie(rng):
    q, k, v = (rng.standard_normal((1, 12, n, 64), np.float32) for n in (1, 2048, 2048))
    assert numbaprims.explain("attention", q, k, v).chosen.solver == "decode"
    q = rng.standard_normal((1, 12, 128, 64), np.float32)
    assert numbaprims.explain("attention", q, k, v).chosen.solver == "flash"


@pytest.mark.cpu
def test_memory_does_not_grow_with_the_length(rng):
    def scratch(length):
        x = rng.standard_normal((1, 1, length, 64), np.float32)
        found = []
        for name, args in (("attention", (x, x, x)), ("attention_backward", (x, x, x, x, x, x[..., 0].copy()))):
            launch = numbaprims.explain(name, *args)["flash"]
            problem = numbaprims.ops.attention.PROBLEMS[name](*args)
            solver, target = launch.solver, numbaprims.cpu.target.current()
            from numbaprims.cpu.attention import SOLVERS

            flash = next(each for each in SOLVERS if each.name == solver)
            found.append(flash.workspace(problem, target, next(iter(flash.configs(problem, target)))))
        return found

    # whole blocks of queries at every width
    assert scratch(3072) == scratch(768) and min(scratch(768)) > 0


def test_nothing_to_attend_to(rng):
    q, k = rng.standard_normal((2, 4, 5, 8)), rng.standard_normal((2, 2, 7, 8))
    out, lse = numbaprims.attention_train(q, k[:, :, :0], k[:, :, :0, :3])
    assert out.shape == (2, 4, 5, 3) and not out.any() and np.isneginf(lse).all()
    for found in numbaprims.attention_backward(out, q, k[:, :, :0], k[:, :, :0, :3], out, lse):
        assert not found.any()
    assert numbaprims.attention(q[:, :, :0], k, k).shape == (2, 4, 0, 8)


def test_bits_do_not_depend_on_threads():
    script = f"""
import hashlib, numpy as np, numbaprims
rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((2, h, 333, 40), np.float32) for h in (4, 2, 2))
out, lse = numbaprims.attention_train(q, k, v, causal=True)
found = [out, lse, *numbaprims.attention_backward(q, q, k, v, out, lse, causal=True),
         numbaprims.attention(q[:, :, :1], *(np.tile(x, (1, 1, 6, 1)) for x in (k, v)))]
if {has_module("ml_dtypes") and target.current().has_fma}:
    import ml_dtypes
    with numbaprims.config(algorithm="attention:flash_amx"):
        found += numbaprims.attention_train(*(x.astype(ml_dtypes.bfloat16) for x in (q, k, v)), causal=True)
print(hashlib.sha256(b"".join(np.ascontiguousarray(y).tobytes() for y in found)).hexdigest())
"""
    assert len(printed_with_threads(script)) == 1


@pytest.mark.cpu
def test_the_page_runs():
    """Every example of docs/primitives/attention.md prints what it says."""
    page = Path(__file__).resolve().parent.parent / "docs" / "primitives" / "attention.md"
    failed, tried = doctest.testfile(str(page), module_relative=False)
    assert tried > 9 and not failed


def test_refusals(rng):
    q, k = rng.standard_normal((2, 4, 5, 8)), rng.standard_normal((2, 2, 7, 8))
    for change, error, words in (
        ({"k": k[..., :7]}, ValueError, "k is a"),
        ({"v": k[:, :, :6]}, ValueError, "k is a"),
        ({"k": k[:1], "v": k[:1]}, ValueError, "it must be"),
        ({"k": k[:, [0, 1, 1]], "v": k[:, [0, 1, 1]]}, ValueError, "multiple"),
        ({"q": q[0, 0]}, ValueError, "heads, length, width"),
        ({"mask": np.ones((5, 6), bool)}, ValueError, "broadcast"),
        ({"mask": np.ones((5, 7), np.float32)}, TypeError, "bool, or of q's type"),
        ({"scale": "half"}, TypeError, "scale"),
        ({"scale": np.nan}, ValueError, "scale is nan; it must be finite"),
    ):
        given = {"q": q, "k": k, "v": k, **change}
        with pytest.raises(error, match=words):
            numbaprims.attention(given.pop("q"), given.pop("k"), given.pop("v"), **given)
    out, lse = numbaprims.attention_train(q, k, k)
    with pytest.raises(ValueError, match="lse"):
        numbaprims.attention_backward(q, q, k, k, out, lse[..., :4])
    with pytest.raises(TypeError, match="lse"):
        numbaprims.attention_backward(q, q, k, k, out, lse.astype(np.float32))


# ---------------------------------------------------------------- torch


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
@pytest.mark.parametrize("mask", ["", "bool", "float"])
@pytest.mark.parametrize("causal", [False, True])
def test_as_torch_with_gradients(rng, mask, causal):
    import torch

    from numbaprims.frontends import torch as nbt

    if causal and mask:
        pytest.skip("torch takes one of them")
    shapes = (2, 6, 19, 8), (2, 2, 23, 8), (2, 2, 23, 5)
    given = [torch.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in shapes]
    attends = masks(rng, mask, 2, 6, 19, 23)
    attends = None if attends is None else torch.from_numpy(attends)
    dout = torch.from_numpy(rng.standard_normal((2, 6, 19, 5)))
    found, wanted = [], []
    theirs = torch.nn.functional.scaled_dot_product_attention
    for to, out in (
        (found, nbt.attention(*given, mask=attends, causal=causal)),
        (wanted, theirs(*given, attn_mask=attends, is_causal=causal, enable_gqa=True)),
    ):
        to += [out, *torch.autograd.grad(out, given, dout)]
    for have, want in zip(found, wanted, strict=True):
        torch.testing.assert_close(have, want, atol=1e-12, rtol=1e-12)


@pytest.mark.skipif(not has_module("torch"), reason="torch is not installed")
def test_second_derivatives_and_that_of_a_mask(rng):
    import torch

    from numbaprims.frontends import torch as nbt

    shapes = (2, 3, 4), (1, 5, 4), (1, 5, 2), (3, 5)
    q, k, v, mask = (torch.from_numpy(rng.standard_normal(shape)).requires_grad_() for shape in shapes)
    assert torch.autograd.gradcheck(lambda *x: nbt.attention(*x[:3], mask=x[3]), (q, k, v, mask))
    assert torch.autograd.gradgradcheck(lambda *x: nbt.attention(*x, causal=True), (q, k, v))
