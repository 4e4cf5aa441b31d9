"""Attention on the emulated GPU against the definition."""

import numpy as np
import pytest
from helpers import caller_array, to_float64

import numbaprims
from numbaprims.gpu.attention.mma import TILES, WIDE_TILES
from numbaprims.gpu.attention.mma_backward import BACKWARD_TILES
from numbaprims.gpu.attention.mma_solver import Mma

TOLERANCE = {"f64": 1e-12, "f32": 4e-6, "f16": 3e-3, "bf16": 3e-2}


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("mask", ["", "bool", "float"])
def test_both_ways(gpu, rng, dtype, mask):
    causal = mask != "bool"

    def draw(*shape):
        return caller_array(rng.standard_normal(shape), dtype)

    q, k, v = draw(2, 4, 5, 7), draw(2, 2, 35, 7).swapaxes(-1, -2), draw(2, 2, 35, 34)
    k = np.ascontiguousarray(k).swapaxes(-1, -2)
    dout, words = draw(2, 4, 5, 34), {"causal": causal}
    if mask == "bool":
        words["mask"] = rng.random((5, 35)) < 0.6
        words["mask"][1] = False
    elif mask:
        words["mask"] = draw(4, 1, 35)
    with numbaprims.config(device="reference"):
        out, lse = numbaprims.attention_train(q, k, v, **words)
        wanted = [out, out, lse, *numbaprims.attention_backward(dout, q, k, v, out, lse, **words)]
    with numbaprims.config(device="cuda"):
        found = [numbaprims.attention(q, k, v, **words), *numbaprims.attention_train(q, k, v, **words)]
        found += numbaprims.attention_backward(dout, q, k, v, out, lse, **words)
    for have, want in zip(found, wanted, strict=True):
        have, want = to_float64(have), to_float64(want)
        assert (np.isneginf(have) == np.isneginf(want)).all()
        have, want = np.where(np.isinf(want), 0, have), np.where(np.isinf(want), 0, want)
        np.testing.assert_allclose(have, want, atol=TOLERANCE[dtype] * max(1.0, np.abs(want).max()), rtol=0)


def check_mma(rng, sizes, dtype, mask="", causal=False, scale=None, spread=1.0, pad=0, backward=False, solver="mma"):
    """Tensor cores, (batch, heads, groups, rows, keys, width, values): out and lse, or the gradients.

    Rows are `pad` elements apart."""
    batch, heads, groups, rows, keys, width, values = sizes

    def draw(*shape):
        x = np.zeros((*shape[:-1], shape[-1] + pad))
        x[..., : shape[-1]] = rng.standard_normal(shape) * spread
        return caller_array(x, dtype)[..., : shape[-1]]

    q, k, v = draw(batch, heads, rows, width), draw(batch, groups, keys, width), draw(batch, groups, keys, values)
    dout, words = draw(batch, heads, rows, values), {"causal": causal, "scale": scale}
    if mask == "bool":
        words["mask"] = rng.random((rows, keys)) < 0.6
        words["mask"][1] = False
    elif mask == "float":
        words["mask"] = draw(heads, 1, keys)
    elif mask == "lowest":  # every key of the last row, which are then equal
        lowest = np.zeros((rows, keys))
        lowest[-1] = -3.38953139e38
        words["mask"] = caller_array(lowest, dtype)
    with numbaprims.config(device="reference"):
        out, lse = numbaprims.attention_train(q, k, v, **words)
        wanted = [out, out, lse]
        if backward:
            wanted = numbaprims.attention_backward(dout, q, k, v, out, lse, **words)
    with numbaprims.config(device="cuda", algorithm=f"attention:{solver}"):
        if backward:
            found = numbaprims.attention_backward(dout, q, k, v, out, lse, **words)
        else:
            found = [numbaprims.attention(q, k, v, **words), *numbaprims.attention_train(q, k, v, **words)]
    for at, (have, want) in enumerate(zip(found, wanted, strict=True)):
        have, want = to_float64(have), to_float64(want)
        assert (np.isneginf(have) == np.isneginf(want)).all()
        have, want = np.where(np.isinf(want), 0, have), np.where(np.isinf(want), 0, want)
        most = TOLERANCE["f32" if at == 2 and not backward else dtype]
        np.testing.assert_allclose(have, want, atol=most * max(1.0, np.abs(want).max()), rtol=0)


#: Few kernels, each of which takes seconds to compile; the others are slow.
MMA_CASES = {
    "tails": ((1, 2, 1, 75, 130, 64, 64), "f16"),
    "causal, more keys than rows": ((1, 2, 1, 75, 130, 64, 64), "f16", "", True),
    "causal, fewer": ((1, 1, 1, 140, 20, 64, 64), "f16", "", True),
    "one query": ((2, 4, 2, 1, 200, 64, 64), "f16"),
    "negative scale": ((1, 1, 1, 33, 70, 64, 64), "f16", "", False, -0.4),
    "large scores": ((1, 1, 1, 33, 200, 64, 64), "f16", "", False, 1.0, 4.0),
    "closed rows": ((2, 4, 2, 20, 70, 64, 48), "bf16", "bool", True),
    "scale 0, closed": ((1, 1, 1, 33, 70, 64, 48), "bf16", "bool", False, 0.0),
    "mask added": ((1, 2, 2, 40, 70, 30, 64), "bf16", "float", True),
    "lowest numbers": ((1, 1, 1, 5, 70, 30, 64), "bf16", "lowest"),
}
SLOW_CASES = {
    "wide": ((1, 2, 1, 70, 70, 128, 128), "f16", "", True),
    "single elements": ((1, 2, 1, 20, 35, 33, 17), "bf16", "", True),
    "8-byte copies": ((1, 2, 1, 20, 35, 36, 20), "bf16", "", False, None, 1.0, 4),
    "widest": ((1, 1, 1, 20, 35, 190, 150), "bf16", "", True),
}


@pytest.mark.parametrize("case", [*MMA_CASES, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_CASES)])
def test_tensor_cores(gpu, rng, case):
    check_mma(rng, *{**MMA_CASES, **SLOW_CASES}[case])
    assert all("attention_mma" in run.entry for run in gpu.launches)


WGMMA = {
    "tails": ((1, 2, 1, 75, 130, 64, 64), "f16"),
    "causal; negative scale": ((1, 2, 1, 140, 75, 64, 64), "f16", "", True, -0.3),
    "one query": ((2, 4, 2, 1, 200, 64, 64), "f16"),
}
SLOW_WGMMA = {
    "closed rows": ((2, 4, 2, 20, 70, 64, 48), "bf16", "bool", True),
    "mask added": ((1, 2, 2, 40, 70, 30, 64), "bf16", "float", True),
    "wide, single elements": ((1, 2, 1, 70, 140, 127, 100), "f16"),
}


@pytest.mark.parametrize("case", [*WGMMA, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_WGMMA)])
def test_wgmma(gpu, rng, case):
    check_mma(rng, *{**WGMMA, **SLOW_WGMMA}[case], solver="wgmma")
    assert all("_True_" in run.entry for run in gpu.launches)


GRADIENTS = {
    "tails": ((1, 2, 1, 75, 70, 64, 64), "f16"),
    "causal, more keys than rows": ((1, 2, 1, 40, 140, 64, 64), "f16", "", True),
    "causal, fewer; negative scale": ((1, 2, 2, 140, 40, 64, 64), "f16", "", True, -0.3),
}
SLOW_GRADIENTS = {
    "closed rows": ((2, 4, 2, 20, 70, 48, 64), "bf16", "bool", True),
    "negative scale, closed": ((1, 2, 1, 20, 70, 48, 64), "bf16", "bool", False, -0.3),
    "mask added": ((1, 4, 2, 40, 75, 64, 34), "bf16", "float", True),
    "lowest numbers": ((1, 1, 1, 5, 70, 64, 34), "bf16", "lowest"),
    "wide, single elements": ((1, 2, 1, 40, 35, 127, 70), "f16", "", True),
}


@pytest.mark.parametrize("case", [*GRADIENTS, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_GRADIENTS)])
def test_gradients_on_tensor_cores(gpu, rng, case):
    check_mma(rng, *{**GRADIENTS, **SLOW_GRADIENTS}[case], backward=True)
    assert [run.entry.split("_")[2] for run in gpu.launches] == ["delta", "backward", "backward"]


@pytest.mark.parametrize(("dtype", "solver"), [("f32", "rows"), ("f16", "mma")])
def test_lse_of_any_strides(gpu, rng, dtype, solver):
    q, k, v, dout = (caller_array(rng.standard_normal((2, 2, n, 64)), dtype) for n in (17, 5, 5, 17))
    with numbaprims.config(device="cuda", algorithm=f"attention:{solver}"):
        out, lse = numbaprims.attention_train(q, k, v)
        apart = np.full((2, 17, 2, 3), np.nan, lse.dtype)[..., 1].swapaxes(1, 2)
        apart[...] = lse
        wanted, found = (numbaprims.attention_backward(dout, q, k, v, out, x) for x in (lse, apart))
    for have, want in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(have, want)


TILED = {
    "tails": ((1, 2, 1, 140, 75, 64, 64), "f32"),
    "causal; negative scale": ((1, 2, 1, 75, 150, 64, 64), "f32", "", True, -0.3),
    "one query": ((2, 4, 2, 1, 70, 64, 64), "f32"),
}
SLOW_TILED = {
    "closed rows, wide": ((1, 4, 2, 70, 70, 100, 90), "f32", "bool", True),
    "mask added, words": ((1, 2, 2, 70, 70, 33, 37), "f32", "float", True),
    "rows apart": ((1, 2, 2, 20, 70, 128, 128), "f32", "", False, None, 1.0, 3),
}


@pytest.mark.parametrize("case", [*TILED, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW_TILED)])
def test_tiles_of_multiply_adds(gpu, rng, case):
    check_mma(rng, *{**TILED, **SLOW_TILED}[case], solver="tiled")
    assert all("attention_tiled" in run.entry for run in gpu.launches)


EVERY = [(TILES, columns, name) for columns in TILES for name in TILES[columns]]
EVERY += [(WIDE_TILES, columns, name) for columns in WIDE_TILES for name in WIDE_TILES[columns]]
EVERY += [(BACKWARD_TILES, columns, name) for columns in BACKWARD_TILES for name in BACKWARD_TILES[columns]]


@pytest.mark.slow
@pytest.mark.parametrize("table, columns, name", EVERY, ids=lambda x: "" if isinstance(x, dict) else str(x))
def test_every_tile(gpu, rng, monkeypatch, table, columns, name):
    monkeypatch.setattr(Mma, "configs", lambda *_: ({"tile": name},))
    tile = table[columns][name]
    own = EVERY.index((table, columns, name))  # a problem of its own: launchers are kept by problem
    sizes = (1, 1, 1, tile.block_rows + 5, 2 * max(tile.keys, tile.rows) + 9 + own, columns, columns)
    solver = "wgmma" if table is WIDE_TILES else "mma"
    check_mma(rng, sizes, "f16", "", True, backward=table is BACKWARD_TILES, solver=solver)
    assert "_".join(map(str, tile)) in gpu.launches[-1].entry


def test_half_precisions_go_to_tensor_cores(gpu, rng):
    with numbaprims.config(device="cuda"):
        for dtype, chosen in (("bf16", "wgmma"), ("f16", "wgmma"), ("f32", "tiled")):
            x = caller_array(rng.standard_normal((1, 12, 512, 64)), dtype)
            assert numbaprims.explain("attention", x, x, x).chosen.solver == chosen
        x = x.astype(np.float16)
        for change, words in ((x[..., ::2], "not contiguous"), (np.tile(x, 5), "more than 192")):
            assert words in str(numbaprims.explain("attention", change, change, change))


def test_refusals(gpu, rng):
    wide, apart = rng.standard_normal((1, 2, 513)), rng.standard_normal((2, 3, 1, 2, 8))[:, ::2]
    for x, words in ((wide, "more than 512 elements"), (apart, "not evenly apart")):
        with numbaprims.config(device="cuda"), pytest.raises(NotImplementedError, match=words):
            numbaprims.attention(x, x, x)
