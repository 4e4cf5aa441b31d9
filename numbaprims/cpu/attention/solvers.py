"""The ways to attend, and what each is estimated to take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from numbaprims.cpu.attention.arguments import BACKWARD, DECODE, FORWARD, NARROW
from numbaprims.cpu.attention.decode import BLOCK, make_decode, make_join
from numbaprims.cpu.attention.gradient import make_backward, make_narrow
from numbaprims.cpu.attention.kernels import make_forward
from numbaprims.cpu.gemm.amx import no_tiles, peak, refusal
from numbaprims.cpu.gemm.pack import make_pack
from numbaprims.cpu.gemm.pieces import EDGE, WORDS
from numbaprims.cpu.gemm.tiles import make_pack_rows
from numbaprims.cpu.gemm.vnni import make_pack_groups
from numbaprims.cpu.program import Bind, Block, Phase, Program, Run, array, scratch
from numbaprims.cpu.rnn.tiles import best_height
from numbaprims.cpu.simd import FLOAT_SLOT, amx_feature, lanes
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES
from numbaprims.ops._attention_problem import AttentionProblem

LINE = 64
#: Vectors of a row of a register tile, and of a panel.
TWO = 2
#: Keys of a block; a panel of 64 keys by two vectors of float32 is 8 KiB.
KEYS = (64, 128, 256)


def _up(n: int, step: int) -> int:
    return -(-n // step) * step


def _room(item: int, **elements: int) -> dict[str, int]:
    """A worker's regions, each with a line behind it: gemm's packing may write past the end of a panel."""
    return {name: count * item + LINE for name, count in elements.items()}


class Sizes:
    """Tiles and blocks of a problem."""

    def __init__(self, p: AttentionProblem, target: Any, config: Config, W: int, kind: str = "") -> None:
        self.compute, self.kind = DTYPES[p.dtype].accumulate, kind
        self.item, self.W = DTYPES[self.compute].itemsize, W
        self.NV = EDGE // W if kind else TWO
        self.NR = self.NV * W
        self.key_block = min(int(config["keys"]), p.keys)
        # few heights, so that few sizes of a call want kernels of their own
        self.MR = best_height(TWO, KEYS[0], target)
        heights = (self.MR, max(1, self.MR * 2 // 3))
        self.MV = min(heights, key=lambda each: _up(p.values, each) * (1.0 + 0.02 * (self.MR - each)))
        self.MQ = best_height(TWO, self.NR, target)
        if kind:
            self.MR = self.MV = EDGE
        blocks = -(-p.rows // (int(config["panels"]) * self.NR))
        self.block = _up(-(-p.rows // blocks), self.NR)
        self.blocks = -(-p.rows // self.block)

    def panels(self, rows: int, depth: int) -> int:
        """Elements of packed rows: of tiles half as many words, of whole tiles."""
        return _up(rows, EDGE) * _up(depth, EDGE) // 2 if self.kind else rows * depth

    def packs(self, dtype: str) -> dict[str, int]:
        """Addresses of the packing kernels."""
        if self.kind:
            rows = make_pack_rows(dtype, self.W).address
            groups = make_pack_groups(dtype, EDGE, self.W, 2, 0, False, "portable", WORDS).address
            return {"pack_q": groups, "pack_k": rows, "pack_v": rows}
        widths = {"pack_q": self.NR, "pack_k": self.MR, "pack_v": self.MV}
        return {name: make_pack(dtype, self.compute, width, self.W).address for name, width in widths.items()}

    def mask_ints(self, p: AttentionProblem) -> dict[str, int]:
        if not p.mask:
            return {}
        dtype, acc = (p.dtype, self.compute) if p.mask == "float" else ("u8", "i32")
        row, col = p.lies("mask")
        return {
            "mask_row": row, "mask_col": col, "mask_size": DTYPES[dtype].itemsize,
            "pack_mask": make_pack(dtype, acc, self.NR, self.W).address,
        }  # fmt: skip


class Flash(Solver):
    """Blocks of queries by blocks of keys, with an online softmax between the two products."""

    name = "flash"
    kind: ClassVar[str] = ""
    """What tiles multiply, or nothing."""

    def lanes(self, problem: Any, target: Any) -> int:
        return lanes(DTYPES[problem.dtype].accumulate, target.vector_bytes)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        # of 16 registers' panels, which are half as wide, twice as many, and blocks of 256 keys: 32 heads of 512 x 128
        # take 60 ms for 76, gradients 0.82 to 1.0 of the time (Zen 3)
        wide = target.isa in ("avx512", "neon")
        for keys in KEYS if wide else KEYS[::-1]:
            for panels in (6, 3, 12) if wide else (12, 6, 3):
                yield {"keys": keys, "panels": panels}

    def estimate(self, problem: Any, target: Any) -> float:
        p, W = problem, self.lanes(problem, target)
        waste = _up(p.rows, TWO * W) / p.rows
        pairs = p.batch * p.heads * p.pairs * waste
        # an exponential takes as long as some 12 multiply-adds, a packed element as some 10
        cycles = pairs / W * (p.width + p.values + 12.0) * 1.2 / target.rates.fma
        blocks = -(-p.rows // (6 * 2 * W))
        cycles += 10.0 / W * p.batch * p.heads * blocks * p.keys * (p.width + p.values)
        return float(target.rates.call + target.rates.cycles(cycles))

    def sizes(self, problem: Any, target: Any, config: Config) -> Sizes:
        return Sizes(problem, target, config, self.lanes(problem, target), self.kind)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        regions = _backward_regions if problem.way == "backward" else _forward_regions
        return regions(problem, self.sizes(problem, target, config))

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        program = _backward if problem.way == "backward" else _forward
        return program(problem, self.sizes(problem, target, config))


def _common(p: AttentionProblem, z: Sizes, places: Any) -> dict[str, int]:
    """The integers of either way."""
    ints = {
        "rows": p.rows, "keys": p.keys, "width": p.width, "values": p.values, "causal": int(p.causal),
        "block": z.block, "key_block": z.key_block, "lse_row": p.lies("lse")[0], "places": int(places.ctypes.data),
        **z.mask_ints(p), **z.packs(p.dtype),
    }  # fmt: skip
    for name in ("out", "q", "k", "v"):
        ints[f"{name}_row"], ints[f"{name}_col"] = p.lies(name)
    return ints


def _binds(p: AttentionProblem) -> dict[str, Bind]:
    there = [n for n, strides in enumerate(p.strides) if strides]
    return {p.names[n]: array(n) for n in there} | {"scale": Bind(FLOAT_SLOT)}


def _forward_regions(p: AttentionProblem, z: Sizes) -> Regions:
    high, keys = _up(p.values, z.MV), _up(z.key_block, z.MR)
    own = _room(
        z.item, queries=z.panels(z.block, p.width), sums=z.block * (high + z.W), most=z.block, total=z.block,
        k_panels=z.panels(keys, p.width), v_panels=z.panels(high, z.key_block), scores=keys * z.NR,
        masked=z.key_block * z.NR if p.mask else 0,
    )  # fmt: skip
    return Regions(own=own)


def _forward(p: AttentionProblem, z: Sizes) -> Program:
    places = p.places()
    ints = _common(p, z, places) | {"blocks": z.blocks}
    feature = amx_feature(z.kind) if z.kind else ""
    kernel = make_forward(p.dtype, z.compute, p.mask, z.MR, z.MV, z.NV, z.W, z.kind, feature)
    phase = Phase(kernel, p.batch * p.heads * z.blocks, 1, p.causal)
    return Program.of(
        FORWARD, ints, [phase], binds=_binds(p), regions=_forward_regions(p, z), keep=(places,),
        parallel=p.flops() > 1e6,
    )  # fmt: skip


def _backward_regions(p: AttentionProblem, z: Sizes) -> Regions:
    wide, deep, high = _up(p.width, TWO * z.W), _up(p.values, TWO * z.W), _up(z.key_block, z.MR)
    own = _room(
        z.item, queries=z.block * p.width, douts=z.block * p.values, outs=z.block * p.values, q_rows=z.block * wide,
        do_rows=z.block * deep, lse_of=z.block, delta_of=z.block, k_panels=high * p.width, v_panels=high * p.values,
        k_rows=high * wide, scores=high * z.NR, slopes=high * (z.NR + z.MQ),
        masked=z.key_block * z.NR if p.mask else 0,
    )  # fmt: skip
    return Regions({f"sums_{name}": z.item * count for name, count in _sums(p, z).items()}, own)


def _sums(p: AttentionProblem, z: Sizes) -> dict[str, int]:
    """Elements of gradients that are summed in another type than theirs, and rounded once they are whole."""
    if p.dtype == z.compute:
        return {}
    k = p.batch * p.groups * p.keys
    return {"dq": p.batch * p.heads * p.rows * p.width, "dk": k * p.width, "dv": k * p.values}


def _backward(p: AttentionProblem, z: Sizes) -> Program:
    places, regions = p.places(), _backward_regions(p, z)
    ints = _common(p, z, places) | {
        "share": p.heads // p.groups, "pack_rows": make_pack(p.dtype, z.compute, TWO * z.W, z.W).address,
    }  # fmt: skip
    ints["dout_row"], ints["dout_col"] = p.lies("dout")
    binds, narrow = _binds(p), list[Run]()
    for name, count in _sums(p, z).items():
        fixed, sums = {"count": count, "part": 1 << 14}, scratch(regions.places[f"sums_{name}"])
        phase = Phase(make_narrow(p.dtype, z.compute, z.W), -(-count // fixed["part"]), 1)
        narrow.append(Run((phase,), (Block(NARROW, fixed, {"out": binds[name], "x": sums}),)))
        binds[name] = sums
    kernel = make_backward(p.dtype, z.compute, p.mask, z.MR, z.MQ, TWO, z.W)
    run = Run((Phase(kernel, p.batch * p.groups, 1),), (Block.of(BACKWARD, ints, binds, regions),))
    return Program(
        (run, *narrow), shared=regions.shared_bytes, worker=regions.own_bytes, keep=(places,),
        parallel=p.flops() > 1e6,
    )  # fmt: skip


class Decode(Solver):
    """Few queries: k and v are read once where they lie, in parts of the keys that are joined by a second phase."""

    name = "decode"

    def why_not(self, problem: Any, target: Any) -> str | None:
        p = problem
        if p.way != "inference" or p.causal:
            return "it keeps nothing for the gradient, and sees all keys"
        if p.rows * p.heads // p.groups > 64:
            return "there are more than 64 queries for a head of k and v"
        if p.strides and (p.lies("k")[1] != 1 or p.lies("v")[1] != 1 or p.lies("out")[1] != 1):
            return "the last dimension of k, v or out is not contiguous"
        return None

    def _splits(self, p: AttentionProblem) -> int:
        """Parts of the keys: 16 tiles, of a block of keys at least."""
        return max(1, min(-(-16 // (p.batch * p.groups)), p.keys // BLOCK))

    def estimate(self, problem: Any, target: Any) -> float:
        p, dtype = problem, DTYPES[problem.dtype]
        W, pairs = lanes(dtype.accumulate, target.vector_bytes), p.batch * p.heads * p.pairs
        # sums of lanes take some 8 instructions
        cycles = pairs * ((p.width + p.values) / W * (2.0 if dtype.itemsize < 4 else 1.3) / target.rates.fma + 8.0)
        moved = p.bytes_moved()
        return float(target.rates.call + max(target.rates.cycles(cycles), moved / target.bandwidth(moved)))

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        p, item = problem, DTYPES[DTYPES[problem.dtype].accumulate].itemsize
        own = _room(item, scaled_q=p.rows * p.heads // p.groups * p.width, scores=4 * BLOCK)
        return Regions({"parts": item * p.batch * p.heads * p.rows * self._splits(p) * (p.values + 2)}, own)

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        p: AttentionProblem = problem
        compute = DTYPES[p.dtype].accumulate
        W, share, splits = lanes(compute, target.vector_bytes), p.heads // p.groups, self._splits(p)
        queries, places = share * p.rows, p.places()
        ints = {
            "rows": p.rows, "keys": p.keys, "width": p.width, "values": p.values, "share": share, "queries": queries,
            "splits": splits, "split": -(-p.keys // splits), "part_row": p.values + 2,
            "places": int(places.ctypes.data), "out_row": p.lies("out")[0], "k_row": p.lies("k")[0],
            "v_row": p.lies("v")[0],
        }  # fmt: skip
        ints["q_row"], ints["q_col"] = p.lies("q")
        ints["mask_row"], ints["mask_col"] = p.lies("mask")
        kernel = make_decode(p.dtype, compute, p.mask, 4 if queries > 1 else 1, W)
        rows = p.batch * p.groups * queries
        join = Phase(make_join(p.dtype, compute, W), rows, max(1, rows // 8))
        return Program.of(
            DECODE, ints, [Phase(kernel, p.batch * p.groups * splits, 1), join], binds=_binds(p),
            regions=self.regions(p, target, config), keep=(places,), parallel=p.bytes_moved() > 1e5,
        )  # fmt: skip


class FlashAmx(Flash):
    """bf16 by AMX's tiles, forward: half of its time are exponentials."""

    name = "flash_amx"
    kind = "bf16"

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if problem.dtype != self.kind:
            return f"it multiplies {self.kind} only"
        if problem.way == "backward":
            return "it computes no gradients"
        return refusal(self.kind, target)

    def why_not(self, problem: Any, target: Any) -> str | None:
        return self.why_not_asked(problem, target) or no_tiles(self.kind)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        # by more keys a block the sums are rescaled less often
        for keys in KEYS[1:] + KEYS[:1]:
            for panels in (6, 3, 12):
                yield {"keys": keys, "panels": panels}

    def estimate(self, problem: Any, target: Any) -> float:
        p, W = problem, self.lanes(problem, target)
        heads, wide, deep = p.batch * p.heads, _up(p.width, EDGE), _up(p.values, EDGE)
        pairs = heads * p.pairs * _up(p.rows, EDGE) / p.rows
        # as `flash`, and a score is scaled and rounded
        cycles = pairs / W * 16.0 * 1.2 / target.rates.fma
        blocks = -(-p.rows // (6 * EDGE))
        cycles += 10.0 / W * heads * blocks * p.keys * (p.width + p.values)
        # sums of 32 queries are rescaled and passed through tiles for each block of keys
        cycles += heads * -(-p.rows // EDGE) * -(-p.keys // KEYS[1]) * (2 * EDGE // W * deep + 200.0)
        return float(
            target.rates.call + target.rates.cycles(cycles) + 2.0 * pairs * (wide + deep) / peak(self.kind, target)
        )


class Naive(Flash):
    """A query after the other."""

    name = "naive"

    def lanes(self, problem: Any, target: Any) -> int:
        return 1


SOLVERS = (Flash(), FlashAmx(), Decode(), Naive())
