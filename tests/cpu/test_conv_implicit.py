"""Building blocks of implicit_gemm, gemm_1x1 and im2col_gemm: walks, tiles, the copy, panels, every way to compute."""

import ctypes
import dataclasses
import sys

import numpy as np
import pytest
from fuzzing.guard import memory
from hypothesis import given, strategies as st

import numbaprims
from numbaprims import workspace
from numbaprims.cpu import target
from numbaprims.cpu.conv.im2col.solver import Im2col
from numbaprims.cpu.conv.implicit.blocks import axis
from numbaprims.cpu.conv.implicit.channels_last import MULTIPLY_ROWS, make_multiply_rows
from numbaprims.cpu.conv.implicit.gather import GATHER, STAGE, make_gather, make_stage
from numbaprims.cpu.conv.implicit.passes import _phases, flat, passes
from numbaprims.cpu.conv.implicit.solvers import Gemm1x1, ImplicitGemm, Layout, lay_out
from numbaprims.cpu.conv.implicit.tiles import PASS
from numbaprims.cpu.conv.implicit.transpose import TRANSPOSE, make_stage_channels_last, make_transpose
from numbaprims.cpu.conv.implicit.weights import WEIGHTS, make_pack_weights
from numbaprims.ops.conv import PROBLEMS as POSES

W = target.current().vector_bytes // 4
STEPS = st.integers(1, 4)


def run(kernel, arguments, arrays, hi=1, **ints):
    """Call a range kernel on arrays, as the drivers do."""
    words = np.zeros(80, np.int64)
    for name, array in arrays.items():
        words[arguments.slot(name)] = array.ctypes.data
    for name, value in ints.items():
        words[arguments.slot(name)] = value
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(kernel.address)(words.ctypes.data, 0, 0, hi)


def integers(rng, *shape):
    return rng.integers(-4, 5, shape).astype(np.float32)


@given(block=st.integers(1, 9), taps=st.integers(1, 6), stride=STEPS, dilation=STEPS, padding=st.integers(-3, 6))
@pytest.mark.parametrize("split", [True, False])
def test_axis_names_the_input_of_every_tap(split, block, taps, stride, dilation, padding):
    made = axis(block, taps, stride, dilation, padding, split=split)
    within, along = (stride, 1) if split else (1, stride)
    for tap, (slot, shift) in enumerate(made.places):
        for o in range(block):
            place = o * along + shift
            assert 0 <= place < made.length
            assert made.low + slot * made.apart + place * within == o * stride - padding + tap * dilation


@given(size=st.integers(1, 20), taps=st.integers(1, 6), stride=STEPS, dilation=STEPS, padding=st.integers(0, 6))
def test_phases_meet_every_tap_once(size, taps, stride, dilation, padding):
    met = set()
    for phase in _phases(size, taps, stride, dilation, padding):
        for j in range(phase["count"]):
            for t in range(phase["taps"]):
                p = j - phase["padding"] + t * phase["dilation"]
                met.add((phase["first"] + j * stride, phase["tap"] + t * phase["step"], p))
    wanted = {
        (h, tap, (h + padding - tap * dilation) // stride)
        for h in range(size)
        for tap in range(taps)
        if (h + padding - tap * dilation) % stride == 0
    }
    assert met == wanted


@pytest.mark.parametrize("dtype, storage", [("f32", np.float32), ("f16", np.float16)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_copy_is_the_padded_input(stride, dtype, storage):
    """Slots of every stride, from an input that ends with its memory: out of bounds stands 0, and nothing is read."""
    rng = np.random.default_rng(1)
    channels, height, width, padding, block = 3, 5, 2 * W + 3, 2, (2, W + 1)
    x = integers(rng, channels, height, width).astype(storage)
    h, w = (axis(size, 3, stride, 1, padding, split=True) for size in block)
    shape = (channels, h.slots, w.slots, h.length, w.length)
    staged = np.full(np.prod(shape) + W, np.nan, np.float32)
    run(
        make_stage(dtype, "f32", W), STAGE, {"staged": staged, "source": x.view(np.uint16) if dtype == "f16" else x},
        channels=channels, images=1, images_there=1, planes=1, rows=h.length, columns=w.length, slots_z=1,
        slots_r=h.slots, slots_s=w.slots, first_h=h.low, first_w=w.low, step_d=1, step_h=stride, step_w=stride,
        apart_h=h.apart, apart_w=w.apart, size_d=1, size_h=height, size_w=width, c_step=height * width, h_step=width,
        w_step=1,
    )  # fmt: skip
    got = staged[:-W].reshape(shape)
    for r in range(h.slots):
        for s in range(w.slots):
            for i in range(h.length):
                for j in range(w.length):
                    row, column = h.low + r * h.apart + i * stride, w.low + s * w.apart + j * stride
                    inside = 0 <= row < height and 0 <= column < width
                    wanted = x[:, row, column].astype(np.float32) if inside else np.zeros(channels)
                    np.testing.assert_array_equal(got[:, r, s, i, j], wanted)


@pytest.mark.parametrize("gap", [0, W])
@pytest.mark.parametrize("channels", [3, W, W + 5, 3 * W])
@pytest.mark.parametrize("width", [W // 2 - 1, W + 2])
@pytest.mark.parametrize("layout", ["channels_last", "gaps", "planes", "second", "third", "strided"])
def test_copy_with_channels_last(layout, width, channels, gap):
    """From planes, their every second and third column, and channels last; pixels side by side or further apart."""
    rng = np.random.default_rng(2)
    height, rows, columns, first = 4, 6, W + 7, -2
    x = integers(rng, height, width, channels)
    held = {
        "channels_last": x, "gaps": integers(rng, height, width, channels + 1)[..., :channels],
        "planes": np.empty((channels, height, width), np.float32).transpose(1, 2, 0),
        # without what lies between the last column and the next row
        "second": integers(rng, channels, height, 2 * width - 1)[..., ::2].transpose(1, 2, 0),
        "third": integers(rng, channels, height, 3 * width - 2)[..., ::3].transpose(1, 2, 0),
        "strided": integers(rng, height, width, 2 * channels)[..., ::2],
    }[layout]  # fmt: skip
    held[...] = x
    pitch = channels + gap
    staged = np.full(rows * columns * pitch + W, np.nan, np.float32)
    h_step, w_step, c_step = (step // 4 for step in held.strides)
    run(
        make_stage_channels_last("f32", "f32", W), STAGE, {"staged": staged, "source": held}, channels=channels,
        images=1,
        images_there=1, planes=1, rows=rows, columns=columns, first_h=-1, first_w=first, size_d=1, size_h=height,
        size_w=width, c_step=c_step, h_step=h_step, w_step=w_step, pitch=pitch,
    )  # fmt: skip
    wanted = np.pad(x, ((1, rows - 1 - height), (-first, columns + first - width), (0, 0)))
    np.testing.assert_array_equal(staged[:-W].reshape(rows, columns, pitch)[..., :channels], wanted)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
def test_one_tap_walks_over_the_pixels_that_it_meets(layout):
    """Rows, and images of channels last, become one; every element stays where it is."""

    def shape(n, c, h, w):
        return (n, c, h, w) if layout == "NCHW" else (n, h, w, c)

    for stride, grid in ((1, 63), (2, (4, 5)), ((1, 2), (7, 5))):
        x, w = np.zeros(shape(3, 20, 7, 9), np.float32), np.zeros((8, 20, 1, 1), np.float32)
        problem = POSES["conv"](x, w, stride=stride, layout=layout)
        (walk,) = passes(problem)
        made = flat(walk, False)
        pixels = 63 if grid == 63 else grid[0] * grid[1]
        together = 3 if layout == "NHWC" and grid == 63 else 1
        assert (made.n, made.grid, made.stride) == (
            3 // together, (1, 1, 63 * together) if grid == 63 else (1, *grid), (1, 1, 1)
        )  # fmt: skip

        def places(walk, steps, stride):
            index = np.indices((walk.n, *walk.grid)).reshape(4, -1)
            return np.array([steps[0], *(a * b for a, b in zip(steps[2:], stride, strict=True))]) @ index

        np.testing.assert_array_equal(places(made, made.x, made.stride), places(walk, walk.x, walk.stride))
        np.testing.assert_array_equal(places(made, made.y, (1, 1, 1)), places(walk, walk.y, (1, 1, 1)))
        assert made.n * made.pixels == 3 * pixels
    padded = POSES["conv"](x, w, padding=1, layout=layout)
    assert flat(passes(padded)[0], False) == passes(padded)[0]


@pytest.mark.parametrize("columns", [1, 3, 5, 9, W - 1, W + 3, 3 * W])
def test_panel_holds_the_patches_of_its_pixels(columns):
    """Vectors within a row, across one row's end, across several and across images."""
    rng = np.random.default_rng(3)
    channels, rows, images, taps = 2, 5, 3, np.array([0, 1, columns + 3], np.int64)
    pitch, lines = columns + 2, rows + 1
    space = integers(rng, channels * images * lines * pitch + 4 * W)
    staged = space[W:]  # a run's first vector may begin before its lane
    panel = np.full((channels, len(taps), 2 * W), np.nan, np.float32)
    places = [(n * lines + p) * pitch + q for n in range(images) for p in range(rows) for q in range(columns)]
    for first in range(0, len(places), 2 * W):
        there = min(2 * W, len(places) - first)
        run(
            make_gather("f32", 2, W), GATHER, {"panel": panel, "staged": staged}, channels=channels,
            channel_step=images * lines * pitch, taps=taps.ctypes.data, window=len(taps), first=first, pixels=there,
            block_q=columns, block_p=rows, block_o=1, columns=pitch, rows=lines, planes=1,
        )  # fmt: skip
        for c in range(channels):
            for t, tap in enumerate(taps):
                at = np.array(places[first : first + there]) + c * images * lines * pitch + tap
                np.testing.assert_array_equal(panel[c, t, :there], staged[at])


@pytest.mark.parametrize("taps_first", [0, 1])
@pytest.mark.parametrize("form", ["forward", "data", "rows", "strided", "some taps", "transposed round"])
@pytest.mark.parametrize("width", [6, W, 2 * W])
def test_weights_become_panels(width, form, taps_first):
    rng = np.random.default_rng(4)
    rows, depth, window, block = 2 * W + 3, 7, 5, 3
    w = integers(rng, rows, depth, window)
    order = {"forward": (0, 1, 2), "rows": (1, 2, 0), "strided": (1, 2, 0)}.get(form, (1, 0, 2))
    held = np.ascontiguousarray(w.transpose(order))
    if form == "strided":
        held = integers(rng, *held.shape[:2], 2 * rows)[..., ::2]
        held[...] = w.transpose(order)
    if form == "some taps":  # as the phases of a gradient meet them: the memory ends with the last
        held = integers(rng, depth, rows * (window + 2))[:, : (rows - 1) * (window + 2) + window]
        held = np.lib.stride_tricks.as_strided(held, (depth, rows, window), (held.strides[0], 4 * window + 8, 4))
        held[...] = w.transpose(order)
        w, held = w[..., 1::2], held[..., 1::2]
        window = w.shape[-1]
    if form == "transposed round":
        held = np.ascontiguousarray(held[..., ::-1])[..., ::-1]
    view = held.transpose(np.argsort(order))
    row_step, c_step, tap_step = (step // 4 for step in view.strides)
    taps = np.arange(window, dtype=np.int64) * tap_step
    panels = -(-rows // width)
    got = np.full((panels * width * depth * window,), np.nan, np.float32)
    for q in range(panels):
        run(
            make_pack_weights("f32", "f32", W), WEIGHTS, {"panels": got, "source": held}, rows=rows, depth=depth,
            block=block, window=window, taps=taps.ctypes.data, plain=int(tap_step == 1), row_step=row_step,
            c_step=c_step, q=q, panel_step=panels * width, taps_first=taps_first, width=width,
        )  # fmt: skip
    for c0 in range(0, depth, block):
        part = w[:, c0 : c0 + block]
        k = part.shape[1] * window
        lines = (part.transpose(2, 1, 0) if taps_first else part.transpose(1, 2, 0)).reshape(k, rows)
        start = c0 * window * panels * width
        have = got[start : start + panels * width * k].reshape(panels, k, width).transpose(1, 0, 2).reshape(k, -1)
        np.testing.assert_array_equal(have[:, :rows], lines)


@pytest.mark.parametrize("MR, NV", [(6, 4), (8, 3), (8, 1)] if W == 16 else [(6, 2), (6, 1)])
def test_rows_that_begin_anywhere(MR, NV):
    """Sums over runs, whole and partial tiles, new and added to; columns past the last are not written."""
    rng = np.random.default_rng(5)
    pixels, columns, run_length, taps = 2 * MR + 1, NV * W + 3, 7, np.array([0, 9, 4, 2], np.int64)
    unit, NR, run_taps = 3, NV * W, 2
    places = rng.integers(0, 50, pixels)
    a = integers(rng, 400)
    k = 2 * run_length
    b = integers(rng, 2, k, NR)
    total = np.full((pixels, columns + 2), 7, np.float32)
    starts = unit * (places[:, None] + taps[None, ::run_taps])
    patches = a[starts[..., None] + np.arange(run_length)].reshape(pixels, k)
    product = patches @ b.transpose(1, 0, 2).reshape(k, 2 * NR)[:, :columns]
    for first in (1, 0):
        run(
            make_multiply_rows("f32", MR, NV, W), MULTIPLY_ROWS, {"a": a, "b": b, "total": total}, hi=2, pixels=pixels,
            columns=columns, k=k, first=first, total_step=columns + 2, places=places.ctypes.data, unit=unit,
            taps=taps.ctypes.data, window=len(taps), run_taps=run_taps, run=run_length, next=k * NR,
        )  # fmt: skip
        np.testing.assert_array_equal(total[:, :columns], product * (2 - first))
        assert (total[:, columns:] == 7).all()


def test_transposed_sums():
    rng = np.random.default_rng(6)
    rows, columns = 2 * W + 3, W + 5
    sums = integers(rng, rows, columns + 4)
    transposed = np.full((columns, rows + 2), np.nan, np.float32)
    run(
        make_transpose("f32", W), TRANSPOSE, {"transposed": transposed, "sums": sums}, rows=rows, columns=columns,
        transposed_step=rows + 2, sums_step=columns + 4,
    )  # fmt: skip
    np.testing.assert_array_equal(transposed[:, :rows], sums[:, :columns].T)
    assert np.isnan(transposed[:, rows:]).all()


# x, w, window, what the case is for
PROBLEMS = (
    ((1, 20, 30, 30), (40, 20, 3, 3), {"padding": 1}),
    ((5, 24, 7, 7), (70, 24, 3, 3), {"padding": 1}),
    ((2, 8, 21, 19), (12, 4, 5, 3), {"stride": 2, "padding": 2, "groups": 2, "dilation": (1, 2)}),
    ((3, 33, 9, 9), (50, 33, 1, 1), {}),
    ((2, 33, 9, 8), (50, 33, 1, 1), {"stride": 2}),
    ((1, 6, 5, 3000), (10, 6, 1, 7), {"padding": (0, 3)}),
    ((1, 64, 14, 14), (530, 64, 1, 1), {}),
    ((2, 37, 13, 14), (200, 37, 1, 1), {"stride": 2}),
    ((1, 600, 6, 6), (140, 600, 3, 3), {"padding": 1}),
    ((2, 9, 6, 7, 8), (11, 9, 3, 2, 3), {"padding": 1, "stride": (1, 2, 2)}),
)


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("solver", [ImplicitGemm(), Gemm1x1(), Im2col()], ids=lambda solver: solver.name)
def test_every_config(solver, layout, prepared):
    """Each way that `find` may choose computes the same, with weights packed before, in a phase, or in each tile."""
    rng = np.random.default_rng(7)
    # a cache of 1 MB for vectors of 64 bytes, 256 KB for 16: the 5400 elements of a window do not fit at any width
    cpu = dataclasses.replace(target.current(), l2=target.current().vector_bytes << 14)
    ways = set()
    shared = parts = False
    for x_shape, w_shape, window in PROBLEMS:
        x, w = rng.integers(-3, 4, x_shape).astype(np.float32), rng.integers(-3, 4, w_shape).astype(np.float32)
        expected = numbaprims.conv(x, w, algorithm="naive", **window)
        given_x = np.ascontiguousarray(np.moveaxis(x, 1, -1)) if layout == "NHWC" else x
        layouts = {"NHWC": {4: "NHWC", 5: "NDHWC"}, "NCHW": {4: "NCHW", 5: "NCDHW"}}
        problem = POSES["conv"](given_x, w, layout=layouts[layout][x.ndim], **window)
        problem = dataclasses.replace(problem, prepared=prepared)
        if solver.why_not(problem, cpu) is not None:
            continue
        for config in solver.configs(problem, cpu):
            ways.add((config["transposed"], config["direct"]))
            if solver.name == "implicit_gemm":
                made = lay_out(Layout, problem, cpu, config)
                shared |= made.channels_last and made.direct != 1 and made.m_blocks > 1
                parts |= made.channels_last and any(
                    b.channels < walk.depth for b, walk in zip(made.blocks, made.walks, strict=True)
                )
            shape = np.moveaxis(expected, 1, -1).shape if layout == "NHWC" else expected.shape
            out = np.full(shape, np.nan, np.float32)
            packed = solver.prepare(problem, cpu, config, w) if prepared else None
            solver.bind(problem, cpu, config)(out, given_x, w, None, None, packed, None, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
            np.testing.assert_array_equal(np.moveaxis(out, -1, 1) if layout == "NHWC" else out, expected)
    if solver.name == "implicit_gemm":
        assert shared and parts
    assert len(ways) == (2 if layout == "NCHW" and solver.name != "im2col_gemm" else 1)


ENDED = (
    ((2, 33, 9, 9), (50, 33, 1, 1), {}),
    ((1, 500, 7, 8), (37, 500, 1, 1), {}),
    ((1, 40, 1, 70), (68, 10, 1, 1), {"groups": 4}),
    ((1, 16, 30, 31), (5, 16, 1, 1), {}),
)


@pytest.mark.parametrize("kind, most", [("identity", np.inf), ("relu", np.inf), ("clipped_relu", 6.0)])
@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_product_ends_its_sums(kind, most, biased, dtype):
    """A bias and relu in registers give what passes over the sums give; nothing behind the bias is read."""
    rng, cpu, ended = np.random.default_rng(3), target.current(), set()
    for x_shape, w_shape, window in ENDED:
        x, w = (rng.integers(-3, 4, shape).astype(dtype) for shape in (x_shape, w_shape))
        bias = memory(w_shape[0] * x.itemsize, True)[0].view(dtype) if biased else None
        if biased:
            bias[:] = rng.integers(-3, 4, w_shape[0])
        x[0, 1, 0, :3] = np.nan, np.inf, -np.inf
        with np.errstate(invalid="ignore"):
            expected = numbaprims.conv(x, w, bias, algorithm="naive", **window)
        least = -np.inf if kind == "identity" else 0.0
        expected = np.where(expected < least, least, np.where(expected > most, most, expected))
        words = {} if kind == "identity" else {"activation": (kind, {"alpha": most}) if most < np.inf else kind}
        dense, wide = (np.full((*expected.shape[:3], columns), np.nan, dtype) for columns in (expected.shape[3], 200))
        for out in (dense, wide[..., 7 : 7 + expected.shape[3]]):  # into the latter the sums are moved
            problem = POSES["conv"](x, w, bias, **words, **window, out=out)
            for config in Gemm1x1().configs(problem, cpu):
                ended.add(lay_out(Layout, problem, cpu, config).ended())
                out[:] = np.nan
                numbers = (1.0, 0.0, min(most, 1e300), 0.0, 0.0, 0.0)
                Gemm1x1().bind(problem, cpu, config)(out, x, w, None, bias, None, None, *numbers)
                np.testing.assert_array_equal(out, expected)
    assert {"identity": 1, "relu": 2, "clipped_relu": 3}[kind] in ended or not (biased or kind != "identity")


def test_images_share_a_tile_where_they_are_small():
    problem = POSES["conv"](np.zeros((16, 64, 7, 7), np.float32), np.zeros((64, 64, 3, 3), np.float32), padding=1)
    cpu = target.current()
    layout = lay_out(Layout, problem, cpu, next(iter(ImplicitGemm().configs(problem, cpu))))
    assert layout.blocks[0].size[0] > 1


def test_workspace_holds_panels_but_no_column_matrix():
    """A tile's copy and its sums fit the second-level cache; the matrix is all that im2col asks for beyond."""
    x, w = np.zeros((1, 64, 112, 112), np.float32), np.zeros((64, 64, 3, 3), np.float32)
    cpu = target.current()
    sizes = {}
    for solver in (ImplicitGemm(), Im2col()):
        problem = POSES["conv"](x, w, padding=1)
        sizes[solver.name] = solver.workspace(problem, cpu, next(iter(solver.configs(problem, cpu))))
    matrix = x.nbytes * 9
    assert matrix <= sizes["im2col_gemm"] <= 1.2 * matrix
    assert sizes["implicit_gemm"] <= 2 * cpu.l2
    with (
        numbaprims.config(algorithm={"conv": "im2col_gemm"}, solver_workspace=sizes["im2col_gemm"] - 1),
        pytest.raises(ValueError, match="scratch memory"),
    ):
        numbaprims.conv(x, w, padding=1)


def test_data_gradient_with_a_stride_has_a_pass_for_each_phase():
    dy, w = np.zeros((1, 8, 10, 10), np.float32), np.zeros((8, 4, 3, 1), np.float32)
    problem = POSES["conv_backward_data"](dy, w, (1, 4, 21, 19), stride=2)
    cpu = target.current()
    layout = lay_out(Layout, problem, cpu, next(iter(ImplicitGemm().configs(problem, cpu))))
    # columns of odd number meet no tap of a kernel one wide
    assert sorted(layout.table[:, PASS.slot("window")]) == [0, 0, 1, 2]
    far = POSES["conv_backward_data"](dy, w, (1, 4, 543, 541), stride=60)
    assert ImplicitGemm().why_not(far, cpu) == "a stride of (1, 60, 60) makes 3600 products of it"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect of Linux")
@pytest.mark.parametrize(
    ("x", "w", "padding"), [((1, 2, 19, 7), (1, 2, 61, 101), (30, 50)), ((2, 3, 13, 1), (2, 3, 25, 25), 12)]
)
def test_lanes_that_are_no_pixels_read_nothing(rng, monkeypatch, x, w, padding):
    """Of few pixels and large windows, with a page that may not be touched behind the scratch memory."""
    monkeypatch.setattr(workspace, "_allocate", lambda nbytes: memory(nbytes, at_end=True, align=64)[0])
    workspace.release()
    x, w = integers(rng, *x), integers(rng, *w)
    found = []
    for solver in ("implicit_gemm", "naive"):
        with numbaprims.config(algorithm={"conv": solver}):
            found.append(numbaprims.conv(x, w, padding=padding))
    workspace.release()
    np.testing.assert_array_equal(*found)
