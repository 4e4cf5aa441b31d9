"""Recurrent networks on the emulated GPU against the definition."""

import dataclasses

import numpy as np
import pytest
from ptx_emulator import launch
from ptx_emulator.driver import EmulatedDriver
from rnn_cases import DEFINITIONS, draw_weights
from test_rnn import TOLERANCE, cast, close

import numbaprims
from numbaprims import RnnWeights
from numbaprims.gpu import driver
from numbaprims.gpu.memory import to_device
from numbaprims.gpu.rnn.dropout import THREADS, blocks_of, least_and_factor, make_dropout
from numbaprims.gpu.rnn.persistent import share_of
from numbaprims.gpu.target import H200
from numbaprims.ops._rnn_problem import RnnProblem
from numbaprims.philox import dropout_mask
from numbaprims.recurrent.lengths import Lengths


def check(
    rng, cell, after, dtype=np.float32, *, steps=3, batch=3, inputs=5, start=True, train=True, clip=None, gap=1,
    dropout=None, algorithm="rnn:single_gemm", **more
):  # fmt: skip
    """Inference, training's way forward with what it keeps, gradients."""
    call = {k: more.pop(k) for k in ("batch_first", "reverse", "merge", "lengths", "batch_sizes") if k in more}
    weights = cast(
        draw_weights(rng, cell, after=after, inputs=inputs, merge=call.get("merge", "concat"), **more), dtype
    )
    shape = (batch, steps, inputs) if call.get("batch_first") else (steps, batch, inputs)
    x = rng.standard_normal((*shape[:2], gap * inputs)).astype(dtype)[..., ::gap]
    if "batch_sizes" in call:
        x = rng.standard_normal((sum(call["batch_sizes"]), inputs)).astype(dtype)
    parts = len(weights.parts)
    sizes = [weights.out_size] + [weights.hidden_size] * (cell == "lstm")
    states = [rng.standard_normal((parts, batch, n)).astype(dtype) if start else None for n in sizes]
    name, tolerance = cell.partition("_")[0], TOLERANCE[weights.dtype]
    words = {} if clip is None else {"clip": clip}
    ways = [(name, words)] + [(f"{name}_train", dropout or {})] * train
    for function, own in ways:
        found, wanted = [], []
        for device, to in (("cuda", found), ("reference", wanted)):
            with numbaprims.config(device=device, algorithm=algorithm):
                to += getattr(numbaprims, function)(x, weights, *states, **call, **own)
        if own is not words:
            kept, definition = found.pop(), wanted.pop()
            close(kept[-3:], definition[-3:], tolerance)
            errors = [rng.standard_normal(each.shape).astype(dtype) for each in wanted]
            for dy in (errors, [None, *errors[1:]]) if start else ([errors[0], *[None] * len(sizes)],):
                with numbaprims.config(device="cuda"):
                    gradients = getattr(numbaprims, f"{name}_backward")(*dy, kept)
                with numbaprims.config(device="reference"):
                    close(gradients, getattr(numbaprims, f"{name}_backward")(*dy, definition), 10 * tolerance)
        close(found, wanted, tolerance)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_a_layer(gpu, rng, cell, after):
    check(rng, cell, after)
    check(rng, cell, after, np.float64, start=False, train=False, bias=False, clip=0.7)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_layers_and_directions(gpu, rng, cell, after):
    check(rng, cell, after, layers=2, directions=2, batch=2)
    check(rng, cell, after, layers=2, directions=2, merge="sum", lengths=[1, 3, 0])


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_lengths(gpu, rng, cell, after):
    check(rng, cell, after, lengths=[2, 0, 3], directions=2)
    check(rng, cell, after, lengths=[1, 3, 2], batch_first=True, reverse=True, start=False)
    check(rng, cell, after, batch_sizes=list(Lengths.of([3, 1, 1], 3).batch_sizes))


def test_variants(gpu, rng):
    check(rng, "lstm", True, proj=2, directions=2, lengths=[3, 1, 2])
    check(rng, "lstm", True, peephole=True, clip=1.0, gap=2)
    check(rng, "lstm", True, np.float16, peephole=True, proj=3, directions=2, lengths=[0, 2, 3], layers=2)
    check(rng, "gru", True, skip=True, inputs=4, batch_first=True, directions=2)
    check(rng, "gru", False, np.float64, steps=1, batch=1, reverse=True)


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_no_inputs(gpu, rng, cell, after):
    check(rng, cell, after, inputs=0, layers=2, directions=2, batch=2)
    check(rng, cell, after, inputs=0, batch_sizes=[3, 1])


@pytest.mark.parametrize(("cell", "after"), DEFINITIONS)
def test_half(gpu, rng, cell, after):
    check(rng, cell, after, np.float16, layers=2, directions=2, batch=2)


@pytest.mark.parametrize(("seed", "offset", "p"), [(1, 0, 0.5), (2**63 + 7, 2**64 - 2, 0.25), (2**32, 2**31, 1.0)])
def test_masks(gpu, seed, offset, p):
    """Bit for bit those of the definition, wherever rows begin in a block of words."""
    low, least_factor = 0xFFFFFFFF, least_and_factor(p)
    random = np.array([seed & low, seed >> 32, offset & low, offset >> 32], np.int64)
    for width, table in ((5, None), (6, [4, 0, 3]), (8, None), (1, [7, 2, 1])):
        rows, each, layer = 3, blocks_of(width), 1
        out = np.full((rows, width), np.nan, np.float32)
        launch(
            make_dropout("f32", "f32", table is not None), 1, THREADS, out, np.ones_like(out),
            np.array(table or [0], np.int64), random, rows * each, each, width, width, width, layer, *least_factor,
        )  # fmt: skip
        mask = dropout_mask((8, width), p, seed, offset + layer)[table or range(rows)]
        np.testing.assert_array_equal(out, mask * np.float32(least_factor[1]))


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_dropout(gpu, rng, cell):
    dropout = {"dropout": 0.4, "seed": 2**63 + 7, "offset": 2**32 - 1}
    check(rng, cell, True, dropout=dropout, layers=3, directions=2, batch=2)
    check(rng, cell, True, dropout=dropout, layers=2, batch_first=True, hidden=5, lengths=[2, 0, 3], merge="sum")
    check(rng, cell, True, np.float16, dropout={"dropout": 1.0}, layers=2)


def test_launches(gpu, rng):
    """One input product a layer and direction, and one recurrent product of each and one cell kernel a step."""
    steps, layers, directions = 4, 2, 2
    check(rng, "lstm", True, steps=steps, layers=layers, directions=directions, train=False)
    names = [each.entry for each in gpu.launches]
    assert sum("rnn_cell" in name for name in names) == layers * steps
    assert sum("gemm" in name for name in names) == layers * directions * (1 + steps)
    gpu.launches.clear()
    weights = draw_weights(rng, "gru", layers=layers, directions=directions)
    with numbaprims.config(device="cuda", algorithm="rnn:single_gemm"):
        y, h_n, reserve = numbaprims.gru_train(rng.standard_normal((steps, 2, 3)), weights)
        gpu.launches.clear()
        numbaprims.gru_backward(y, h_n, reserve)
    names = [each.entry for each in gpu.launches]
    assert sum("rnn_back_cell" in name for name in names) == layers * steps
    # of dx, w_ih and w_hh one each
    assert sum("gemm" in name for name in names) == layers * directions * (3 + steps)


# ---------------------------------------------------------------- one launch for all steps

PERSISTENT = [("lstm", True), ("gru", True), ("rnn_tanh", True), ("rnn_relu", True)]


@pytest.fixture
def small():
    """A GPU of seven multiprocessors that holds some of the sequences at a time, whose threads run in any order."""
    target = dataclasses.replace(H200, multiprocessors=7, shared_per_block=40 << 10)
    with driver.use(emulated := EmulatedDriver(target, order="random")):
        yield emulated


@pytest.mark.parametrize(("cell", "after"), PERSISTENT)
def test_persistent(gpu, rng, cell, after):
    more = {"algorithm": "rnn:persistent", "hidden": 8}
    check(rng, cell, after, **more)
    check(rng, cell, after, lengths=[2, 0, 3], layers=2, directions=2, train=cell == "gru", **more)
    if cell == "rnn_relu":
        return
    check(rng, cell, after, np.float64, start=False, train=False, bias=False, clip=0.7, reverse=True, **more)
    check(rng, cell, after, np.float16, peephole=cell == "lstm", batch_first=True, train=cell == "lstm", **more)


@pytest.mark.parametrize(("cell", "after"), PERSISTENT)
def test_persistent_shares(small, rng, cell, after):
    """Several units a block, fewer of the last, several loads of states."""
    more = {"algorithm": "rnn:persistent", "train": False, "inputs": 3}
    check(rng, cell, after, hidden=80, directions=2, batch=11 if cell == "lstm" else 5, **more)
    check(rng, cell, after, hidden=20, batch=4, steps=4, lengths=[4, 1, 3, 4], **more)


@pytest.mark.parametrize(("cell", "after"), PERSISTENT)
def test_persistent_on_tensor_cores(gpu, rng, cell, after):
    lengths = [2, 3, 0, 1, 3, 3, 2, 3, 3]
    more = {"algorithm": "rnn:persistent", "hidden": 32, "batch": 9, "dtype": np.float16}
    check(rng, cell, after, lengths=lengths, directions=2, train=cell == "gru", **more)
    assert any("_8_True_" in each.entry for each in gpu.launches)


def test_persistent_shares_of_tensor_cores(small, rng):
    """Rows that are no tile, and a last load of states that is none."""
    sizes = {"steps": 2, "batch": 18, "inputs": 3, "hidden": 160}
    fixed = {"layers": 1, "directions": 1, "reverse": False, "merge": "concat", "lengths": False, "reset_after": True}
    flags = {"skip_input": False, "clipped": False, "dropout": False, "way": "inference", "order": "time"}
    share = share_of(
        RnnProblem(cell="lstm", dtype="f16", rows=36, projected=0, **sizes, **fixed, **flags), small.target
    )
    assert share.tensor and share.chunk == 8 and share.units * 4 % 16
    check(rng, "lstm", True, np.float16, **sizes, train=False, algorithm="rnn:persistent")


def test_persistent_weights_anywhere(gpu, rng):
    """Weights that begin at no multiple of 16 bytes."""
    x, ih, hh = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 3, 4), (8, 4), (8, 8)))
    apart = to_device(np.concatenate([[0], hh.ravel()]).astype(np.float32))[1:].reshape(8, 8)
    given = to_device(x), RnnWeights.from_arrays("rnn_tanh", to_device(ih), apart)
    with numbaprims.config(algorithm="rnn:persistent"):
        found = numbaprims.rnn(*given)[0]
    with numbaprims.config(device="reference"):
        wanted = numbaprims.rnn(x, RnnWeights.from_arrays("rnn_tanh", ih, hh))[0]
    np.testing.assert_allclose(found.to_host(), wanted, atol=1e-5)


def test_persistent_launches(gpu, rng):
    check(rng, "lstm", True, layers=2, directions=2, train=False, algorithm="rnn:persistent")
    names = [each.entry for each in gpu.launches]
    assert sum("rnn_persistent" in name for name in names) == 2 and sum("gemm" in name for name in names) == 4
    assert not any("rnn_cell" in name for name in names)


def test_plans(gpu, rng):
    """What was packed for the host's kernels is no hindrance; bytes are for these alone."""
    weights = cast(draw_weights(rng, "lstm", layers=2), np.float32)
    x = rng.standard_normal((3, 2, 3)).astype(np.float32)
    plan, of_bytes = (numbaprims.lstm.plan(weights, quantize=each) for each in (None, "int8"))
    close(plan(x), numbaprims.lstm(x, weights), TOLERANCE["f32"])
    with numbaprims.config(device="cuda"):
        for found, wanted in zip(plan(x), numbaprims.lstm(x, weights), strict=True):
            assert found.tobytes() == wanted.tobytes()
        with pytest.raises(NotImplementedError, match="it multiplies weights as they were given"):
            of_bytes(x)
