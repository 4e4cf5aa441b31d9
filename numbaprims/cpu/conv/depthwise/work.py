"""What a depthwise convolution runs: kernels, tile sizes and the integers they take, for each form of operands."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.activation.kernels import CHEAP, OPERATIONS
from numbaprims.cpu.conv.arguments import itemsize
from numbaprims.cpu.conv.depthwise import blocks as of_blocks, pixels as of_pixels, rows as of_rows
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.gemm.pack import make_pack
from numbaprims.cpu.program import Program
from numbaprims.cpu.regions import Regions
from numbaprims.cpu.simd import lanes

SLACK = 256  # bytes behind panels, which may be written a vector past their end
BLOCK = 8  # panels of channels whose sums of a weight's gradient stay in the first-level cache


# Cycles, measured on one core of a Zen 5; those of taps are of two units for vectors.  Of planes: a plane; a row of a
# tile, and each of its taps; of pixels: a vector of the result, each of its taps, and each vector of the input that it
# loads.
PLANE, ROW, ROW_TAP = 82.0, 1.23, 0.902
VECTOR, VECTOR_TAP, VECTOR_LOAD = 2.46, 0.492, 1.845
# Of blocks: W x W elements turned and stored, a row of the result and each of its rows of taps.
TURN, TILE, TILE_ROW = 60.0, 10.0, 2.0
# How many times as long x and y take from beyond the second-level and the third-level cache as a loop that only moves
# their bytes.
FAR_L3, FAR_MEMORY = 1.3125, 3.43


def sides(problem: Any) -> tuple[Any, ...]:
    """Sizes and strides of what windows walk over and of what they lead to (of dy and dx for the data gradient)."""
    p, s = problem, problem.strides
    if p.direction == "data":
        return p.y_size, p.x_size, s.y, s.x
    return p.x_size, p.y_size, s.x, s.y


def vector(problem: Any, target: Any, elements: int) -> int:
    """Lanes: as many as a register has, or half as often as that leaves more than half of them empty."""
    W = lanes(problem.accumulate, target.vector_bytes)
    while W > 4 and elements <= W // 2:
        W //= 2
    return W


def least_padding(size: int, tiles: tuple[int, ...]) -> int:
    """The tile of least padding; the size itself where one tile can hold it."""
    return size if size <= max(tiles) else min(tiles, key=lambda tile: round_up(size, tile))


def halves(target: Any, tiles: tuple[int, ...]) -> tuple[int, ...]:
    """Tiles for targets of 16 registers."""
    if target.isa in ("avx512", "neon"):
        return tiles
    return tuple(dict.fromkeys(max(1, tile // 2) for tile in tiles))


def asked_from(target: Any) -> float:
    """Bytes from which on the next tile's lines are asked for.  A core that reads rows beside each other badly gains by
    it wherever they come from: 16 x 256 x 28 x 28 takes 2.4 ms for 4.8, 4 x 96 x 56 x 56 with a stride of 2 344 us for
    416, 566 for 1493 if it comes from memory, and 1 x 672 x 14 x 14, the worst, 446 for 420 (Zen 3)."""
    return float(target.l2 if target.rates.beside else max(target.l2, target.l3 // 4))


def common(problem: Any, target: Any, none: np.ndarray) -> dict[str, int]:
    """The integers that both forms take."""
    p, s = problem, problem.strides
    in_size, out_size, in_steps, out_steps = sides(p)
    (_, SH, SW), pad, spread = p.stride, p.padding, p.direction == "data"
    return {
        "images": p.n, "channels": p.k, "multiplier": p.group_k,
        "in_h": in_size[1], "in_w": in_size[2], "out_h": out_size[1], "out_w": out_size[2],
        "row": pad[1] if spread else -pad[1], "column": pad[2] if spread else -pad[2],
        # tiles of a spread window begin where padding and row together are a multiple of the stride
        "first_row": -(pad[1] % SH) if spread else 0, "first_column": -(pad[2] % SW) if spread else 0,
        "in_n": in_steps[0], "in_c": in_steps[1], "in_row": in_steps[3], "in_column": in_steps[4],
        "out_n": out_steps[0], "out_c": out_steps[1], "out_row": out_steps[3], "out_column": out_steps[4],
        "c_n": s.c[0], "c_c": s.c[1], "c_row": s.c[3], "c_column": s.c[4],
        "w_k": s.w[0], "w_row": s.w[3], "w_column": s.w[4],
        "has_c": int(p.has_c), "has_bias": int(p.bias), "bias_step": s.bias,
        "activation": activation_address(p, target), "zeros": int(none.ctypes.data),
        "far": int(p.bytes_moved() > asked_from(target)),
    }  # fmt: skip


def waits(problem: Any) -> bool:
    """Whether sums wait elsewhere for the activation, because the result's type is narrower than theirs."""
    return bool(problem.activation.kind != "identity" and problem.out_dtype != problem.accumulate)


def far_time(problem: Any, target: Any) -> float:
    """Reading and writing beyond the second-level cache."""
    size, rates = float(problem.bytes_moved()), target.rates
    if size <= target.l2:
        return 0.0
    return float(size * (FAR_L3 / rates.l3 if size <= target.l3 else FAR_MEMORY / rates.memory))


def end_time(problem: Any, target: Any) -> float:
    """The activation's pass over a result that is in the cache."""
    p, kind = problem, problem.activation.kind
    each = 0.0 if kind == "identity" else OPERATIONS.get(kind, CHEAP) / 2 + 2.0
    return float(target.rates.cycles(each * p.n * p.k * p.pixels / lanes(p.accumulate, target.vector_bytes)))


def rows_tile(problem: Any, target: Any) -> tuple[int, int, int]:
    """Rows and lanes of a tile, and how many rows (of phases, for the data gradient) there are."""
    p = problem
    out_size, (_, SH, SW) = sides(p)[1], p.stride
    W, rows = vector(p, target, out_size[2]), int(out_size[1])
    tiles: tuple[int, ...] = (7, 8, 6, 5)
    if p.direction == "data":
        rows = ceil_div(rows + p.padding[1] % SH, SH)
        tiles = {1: tiles, 2: (4, 3)}.get(SH * SW, (2, 1))
    return least_padding(rows, halves(target, tiles)), W, rows


def rows_time(problem: Any, target: Any) -> float:
    """Seconds that planes take."""
    p, SW = problem, problem.stride[2]
    RT, W, rows = rows_tile(p, target)
    out_w = sides(p)[1][2]
    columns = ceil_div(out_w + p.padding[2] % SW, SW) if p.direction == "data" else out_w
    # even and odd columns are sorted or mixed in registers
    mixing = (1.5 if target.isa in ("avx512", "neon") else 2.0) if SW == 2 else 1.0
    vectors = p.n * p.k * round_up(rows, RT) * ceil_div(columns, W) * mixing
    rates = target.rates
    # one unit for whole vectors is two for half ones
    share = max(W * itemsize(p.accumulate) / target.vector_bytes, rates.fma / 2)
    work = rates.cycles(p.n * p.k * PLANE + ROW * vectors) + rates.vectors(ROW_TAP * p.taps * vectors * share)
    return float(1.67 * rates.call + work + far_time(p, target) + end_time(p, target))


def rows_program(problem: Any, target: Any, parallel: bool) -> Program:
    """Planes whose rows are contiguous."""
    p = problem
    in_size, out_size = sides(p)[:2]
    (_, R, S), (_, SH, SW) = p.kernel, p.stride
    RT, W, _ = rows_tile(p, target)
    room = out_size[1] * out_size[2] * itemsize(p.accumulate) if waits(p) else 0
    none = np.zeros(in_size[2] * itemsize(p.in_dtype), np.uint8)
    ints = of_rows.ARGS.of(common(p, target, none))
    if p.direction == "weight":
        kernel, count = of_rows.make_gradient(p.in_dtype, p.accumulate, RT, R, S, SH, SW, W), p.k
    else:
        kernel = of_rows.make_rows(
            p.in_dtype, p.accumulate, RT, R, S, SH, SW, W, int(p.has_c), int(room > 0), int(p.direction == "data")
        )  # fmt: skip
        count = p.n * p.k
    phases = [(kernel, count, ceil_div(count, 32))]
    return Program.of(
        of_rows.ARGS, ints, phases, keep=(none,), parallel=parallel, regions=Regions(own={"waiting": room})
    )


def in_line(problem: Any) -> bool:
    """Whether the taps of a filter are packed with one step."""
    p, w = problem, problem.strides.w
    return bool(p.kernel[1] == 1 or p.kernel[2] == 1 or w[3] == p.kernel[2] * w[4])


def w_tap(problem: Any) -> int:
    """The step from tap to tap."""
    return int(problem.strides.w[4 if problem.kernel[2] > 1 else 3])


def blocks_copy(problem: Any) -> tuple[int, int]:
    """How wide and large the copy of a plane is, in pixels, with one that stands for none."""
    p = problem
    pitch = max(p.x_size[2] + p.padding[2], (p.y_size[2] - 1) * p.stride[2] + p.kernel[2])
    return pitch, p.x_size[1] * pitch + 1


def blocks_bytes(problem: Any, target: Any) -> dict[str, int]:
    """A worker's copy of a block of planes, and its sums."""
    W = vector(problem, target, problem.k)
    each = W * itemsize(problem.accumulate)
    return {"copy": blocks_copy(problem)[1] * each, "turned": (problem.pixels + W) * each}


def in_blocks(problem: Any, target: Any) -> bool:
    """Whether planes are turned to blocks of channels: where rows of the result leave half of a vector empty, and a
    block stays in the first-level cache.  On a Zen 4 5 x 5 of planes of 7 x 7 takes 0.51 of the time by rows, 3 x 3
    0.65, of 14 x 14 with a stride of 2 0.6 and 0.75, and 14 x 14 with a stride of 1, which needs 1.7 times its
    first-level cache, 0.85 to 1.3."""
    p, s, size = problem, problem.strides, itemsize(problem.accumulate)
    W = lanes(p.accumulate, target.vector_bytes)
    if p.direction != "forward" or p.group_k > 1 or p.has_c or p.scaled or not in_line(p):
        return False
    if 2 * p.y_size[2] > W or vector(p, target, p.k) < W or p.n * p.k < 16 * W:
        return False
    dense = all(size[1] == 1 or steps[3] == size[2] for steps, size in ((s.x, p.x_size), (s.y, p.y_size)))
    used = sum(blocks_bytes(p, target).values()) + W * size * (p.x_size[1] * p.x_size[2] + p.pixels)
    return dense and used <= 1.25 * target.l1d


def blocks_time(problem: Any, target: Any) -> float:
    """Seconds that blocks of planes take."""
    p, rates = problem, target.rates
    W = vector(p, target, p.k)
    (_, R, S), SH, pad = p.kernel, p.stride[1], p.padding[1]
    rows = sum(min(R, p.x_size[1] - at) - max(0, -at) for at in range(-pad, p.y_size[1] * SH - pad, SH))
    turned = ceil_div(p.x_size[1] * p.x_size[2], W) + ceil_div(p.pixels, W)
    cycles = turned * TURN * W / 16 + p.y_size[1] * TILE + rows * TILE_ROW
    blocks = p.n * ceil_div(p.k, W)
    work = rates.cycles(blocks * cycles) + rates.vectors(blocks * rows * p.y_size[2] * S * VECTOR_TAP)
    return float(2.5 * rates.call + work + far_time(p, target) + end_time(p, target))


def blocks_program(problem: Any, target: Any, parallel: bool, only_pack: bool = False) -> Program:
    """Planes turned to blocks of channels; `only_pack` for the weights of a plan."""
    p, acc = problem, problem.accumulate
    (_, R, S), (_, SH, SW) = p.kernel, p.stride
    W, (pitch, room) = vector(p, target, p.k), blocks_copy(p)
    panels, (_, rows, columns) = ceil_div(p.k, W), p.x_size
    places = np.full(rows * columns + W, room - 1, np.int64)
    places[: rows * columns] = (np.arange(rows)[:, None] * pitch + np.arange(columns) + p.padding[2]).ravel()
    places *= W
    values = common(p, target, places) | {
        "panels": panels, "pack": make_pack(p.in_dtype, acc, W, W).address, "w_tap": w_tap(p),
        "places": int(places.ctypes.data), "pitch": pitch, "room": room,
    }  # fmt: skip
    kernel, count = of_blocks.make_blocks(p.in_dtype, acc, p.y_size[2], R, S, SH, SW, W), p.n * panels
    phases, packed = packing(p, target, (kernel, count, ceil_div(count, 32)), only_pack)
    return Program.of(
        of_pixels.ARGS, of_pixels.ARGS.of(values), phases, keep=(places,), parallel=parallel,
        regions=Regions({"weights": packed}, blocks_bytes(p, target)),
    )  # fmt: skip


def pixels_tile(problem: Any, target: Any) -> tuple[int, int, int, int]:
    """Rows and columns of a tile, and how many (of phases, for the data gradient) there are."""
    p, (_, SH, SW) = problem, problem.stride
    _, rows, columns = sides(p)[1]
    tiles: tuple[int, ...] = (7, 8, 6, 5)
    if p.direction == "data":
        rows, columns = ceil_div(rows + p.padding[1] % SH, SH), ceil_div(columns + p.padding[2] % SW, SW)
        tiles = {1: tiles, 2: (4, 3)}.get(SH * SW, (3, 2))
    QT = least_padding(columns, halves(target, tiles))
    RT = 2 if SH * SW == 1 and rows % 2 == 0 and target.isa in ("avx512", "neon") else 1
    return RT, QT, int(rows), int(columns)


def pixels_time(problem: Any, target: Any) -> float:
    """Seconds that images take whose channels are neighbours."""
    p, (_, R, S), (_, SH, SW) = problem, problem.kernel, problem.stride
    RT, QT, rows, columns = pixels_tile(p, target)
    loads = ((RT - 1) * SH + R) * ((QT - 1) * SW + S) / (RT * QT)
    vectors = p.n * ceil_div(p.k, vector(p, target, p.k)) * round_up(rows, RT) * round_up(columns, QT)
    pack = 0.0 if p.prepared or p.direction == "weight" else p.k * p.taps * 1.23
    rates = target.rates
    ends = far_time(p, target) + end_time(p, target)
    work = rates.cycles(vectors * (VECTOR + VECTOR_LOAD * loads) + pack) + rates.vectors(vectors * VECTOR_TAP * p.taps)
    return float(2.5 * rates.call + work + ends)


def packed_bytes(problem: Any, target: Any) -> int:
    """Of the weights in panels of channels."""
    W = vector(problem, target, problem.k)
    return int(ceil_div(problem.k, W) * problem.taps * W * itemsize(problem.accumulate)) + SLACK


def packing(problem: Any, target: Any, phase: Any, only_pack: bool) -> tuple[list[Any], int]:
    """The phase behind that which packs the weights, where no plan has them, and the bytes that they take."""
    p, W = problem, vector(problem, target, problem.k)
    panels = ceil_div(p.k, W)
    if p.prepared and not only_pack:
        return [phase], 0
    pack = (of_pixels.make_pack_weights(p.in_dtype, p.accumulate, p.taps, W), panels, ceil_div(panels, 4))
    return [pack] if only_pack else [pack, phase], packed_bytes(p, target)


def pixels_program(problem: Any, target: Any, parallel: bool, only_pack: bool = False) -> Program:
    """Images whose channels are neighbours; `only_pack` for the weights of a plan."""
    p, acc = problem, problem.accumulate
    out_size = sides(p)[1]
    (_, R, S), (_, SH, SW) = p.kernel, p.stride
    W, spread = vector(p, target, p.k), p.direction == "data"
    RT, QT, rows, _ = pixels_tile(p, target)
    panels = ceil_div(p.k, W)
    size = itemsize(acc)
    room = out_size[2] * p.k * size * RT * (SH if spread else 1) if waits(p) else 0
    none = np.zeros(W * 8, np.uint8)
    values = common(p, target, none) | {
        "panels": panels, "block": BLOCK, "blocks": ceil_div(panels, BLOCK), "down": ceil_div(rows, RT),
        "pack": 0, "strip": 0, "strips": 0,
    }  # fmt: skip
    values["w_tap"] = w_tap(p)
    if p.direction == "weight":
        lines = p.n * p.y_size[1]
        # 16 tiles keep several threads busy; what they are depends on the problem only
        values["strip"] = ceil_div(lines, min(lines, ceil_div(16, values["blocks"])))
        values["strips"] = ceil_div(lines, values["strip"])
        phases = [
            (
                of_pixels.make_gradient(p.in_dtype, acc, QT, R, S, SH, SW, W),
                values["strips"] * values["blocks"],
                1,
            ),
            (of_pixels.make_sum_strips(p.out_dtype, acc, R, S, W), panels, ceil_div(panels, 4)),
        ]
        regions = Regions({"sums": values["strips"] * panels * R * S * W * size})
        return Program.of(
            of_pixels.ARGS,
            of_pixels.ARGS.of(values),
            phases,
            keep=(none,),
            parallel=parallel,
            regions=regions,
        )
    count = p.n * values["down"]
    values["pack"] = make_pack(p.in_dtype, acc, W, W).address
    kernel = of_pixels.make_pixels(
        p.in_dtype, acc, RT, QT, R, S, SH, SW, W, int(p.has_c), int(room > 0), int(spread)
    )  # fmt: skip
    phases, packed = packing(p, target, (kernel, count, ceil_div(count, 32)), only_pack)
    return Program.of(
        of_pixels.ARGS, of_pixels.ARGS.of(values), phases, keep=(none,), parallel=parallel,
        regions=Regions({"weights": packed}, {"waiting": room}),
    )  # fmt: skip
