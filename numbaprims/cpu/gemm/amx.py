"""Products by AMX's tiles: solvers, and what plans pack.  Kernels and their bound: `tiles.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from numbaprims import settings
from numbaprims.cpu.gemm import blocked, cost
from numbaprims.cpu.gemm.arguments import COMMON, batch_offsets
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.long import in_parts
from numbaprims.cpu.gemm.pieces import EDGE, WORDS, make_pack_pieces
from numbaprims.cpu.gemm.solvers import SLACK, Prepacked, Private, block_columns, sum_bytes
from numbaprims.cpu.gemm.tiles import BYTE_KINDS, make_multiply_tiles, make_pack_rows
from numbaprims.cpu.gemm.variants import variants
from numbaprims.cpu.gemm.vnni import make_pack_groups
from numbaprims.cpu.program import Program
from numbaprims.cpu.simd import amx_feature, dot_feature, lanes
from numbaprims.cpu.simd.tiles.amx import PRODUCTS, piece_count, pieces
from numbaprims.cpu.solver import Config, Regions

#: Operations a cycle, and the part of them that products reached without what packing takes: 1,250 of 2,765 GFLOP/s at
#: 1024^3 (an Emerald Rapids).
OPERATIONS, REACHED = {"bf16": 1024.0, "f16": 1024.0, "s8s8": 2048.0, "u8s8": 2048.0}, 0.45
#: Up to here the rows are one block, whose worker packs its columns of B itself, where it multiplies them: 384 x 768 x
#: 768 took 0.86 of the time that two blocks took with B packed before (an Emerald Rapids).
FEW_ROWS = 512
#: The same of the portable form, of a vector's multiply-adds.
PORTABLE = 0.05


def kind_of(problem: Any) -> str | None:
    """What tiles multiply of a problem, or None."""
    if problem.a_dtype == problem.b_dtype and problem.a_dtype in ("bf16", "f16"):
        return str(problem.a_dtype)
    return {"i8": "s8s8", "u8": "u8s8"}.get(problem.a_dtype) if problem.accumulate == "i32" else None


def refusal(kind: str | None, target: Any) -> str | None:
    """Why there is no product of tiles, of whatever form."""
    if kind is None:
        return "tiles multiply bf16 and bytes"
    return None if target.has_fma else "without fused multiply-adds its sums would round in another way"


def no_tiles(kind: str | None) -> str | None:
    """Why tiles are not used that nobody asks for by name."""
    if kind is None or amx_feature(kind) == "amx":
        return None
    return (
        f"this CPU has no tiles (AMX) with {PRODUCTS[kind][0]}, or the system does not grant them: by vectors, asked "
        "for by name, it is slow"
    )


def peak(kind: str, target: Any) -> float:
    """Operations a second that products reach, of numbers in pieces those of whole numbers."""
    if amx_feature(kind) == "amx":
        whole = REACHED * OPERATIONS.get(kind, OPERATIONS["bf16"]) * target.rates.clock
    else:
        whole = PORTABLE * target.rates.flops(lanes("f32", target.vector_bytes))
    return float(whole / len(pieces(kind)))


def in_pieces(allowed: tuple[str, ...]) -> str | None:
    """Why float32 is not cut into pieces: what `config(accuracy=)` would have to be."""
    if settings.current().accuracy in allowed:
        return None
    return f"it cuts float32 into pieces of bf16; config(accuracy={allowed[-1]!r}) allows that"


def plan_kind(problem: Any) -> str | None:
    """What plans pack for, or None: it does not change while a process runs."""
    kinds = ("f16", "x4") if problem.a_dtype == "f16" else (kind_of(problem),)
    return next((kind for kind in kinds if kind and amx_feature(kind) == "amx"), None)


def _panels(kind: str) -> tuple[int, int, int]:
    """As `Panels.panels`."""
    return (1, 4 * WORDS, 4) if kind in BYTE_KINDS else (2 * piece_count(kind), 2 * WORDS, 0)


def _kernels(problem: Any, kind: str, W: int) -> dict[str, int]:
    """As `Panels.kernels`."""
    count, whole = piece_count(kind), kind in BYTE_KINDS
    per = 4 if whole else 2
    row = problem.strides.a[0]
    # rows a multiple of 4 KiB apart share few sets of the caches: 2048^3 by tiles of them took 1.09 times as long as
    # with copies (an Emerald Rapids)
    far = row * 4 // per % 4096 == 0
    there = count == 1 and problem.strides.a[1] == 1 and row % per == 0 and row > 0 and not far
    if count > 1:
        pack_a, pack_b = (make_pack_pieces(problem.a_dtype, side, count, W) for side in "ab")
    else:
        pack_a, feature = make_pack_rows(problem.a_dtype, W), dot_feature("u8s8", W)
        pack_b = make_pack_groups(problem.b_dtype, EDGE, W, per, 0, whole, feature, WORDS)
    # a tile's rows of 64 bytes wait for lines of out from afar, whole rows of a block do not: 2048^3 took 1.12 times as
    # long so, 512^3 0.91 (an Emerald Rapids)
    ends = problem.m <= FEW_ROWS and problem.strides.out[1] == 1 and not problem.ends
    narrow = problem.out_dtype if ends and problem.out_dtype in ("bf16", "f16") else ""
    multiply = make_multiply_tiles(kind, amx_feature(kind), W, narrow)
    ints = {"pack_a": pack_a.address, "pack_b": pack_b.address, "multiply": multiply.address, "a_there": int(there)}
    return ints | ({"ends_there": 1, "finish": 0} if narrow else {})


def _config(target: Any, kind: str, steps: int, mc: int, nc: int) -> Config:
    kc = steps // piece_count(kind)
    return {"mr": EDGE, "nv": EDGE // lanes("f32", target.vector_bytes), "kc": kc, "mc": mc, "nc": nc}


@in_parts
class Amx(Private):
    """Tiles of Intel's AMX: blocks of out to the workers, whose sums stay in the second-level cache for the whole of k;
    where several blocks of rows need it, B packed once and shared."""

    name = "amx"

    def kind(self, problem: Any) -> str | None:
        """What it multiplies of a problem, or None."""
        return kind_of(problem)

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        return refusal(self.kind(problem), target) or super().why_not(problem, target)

    def why_not(self, problem: Any, target: Any) -> str | None:
        return self.why_not_asked(problem, target) or no_tiles(self.kind(problem))

    def panels(self, problem: Any, target: Any) -> tuple[int, int, int]:
        return _panels(str(self.kind(problem)))

    def kernels(self, problem: Any, target: Any, MR: int, NV: int, W: int) -> dict[str, int]:
        return _kernels(problem, str(self.kind(problem)), W)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        kind, few = str(self.kind(problem)), problem.m <= FEW_ROWS
        mc, most = (FEW_ROWS, 256) if few else (256, 512)
        # a panel of B is 32 KiB, or 64; of numbers in pieces each block of k ends sums, which m must not change
        steps = 32 if few and piece_count(kind) == 1 else 16
        default = _config(target, kind, steps, mc, block_columns(problem, mc, most, EDGE))
        nc = int(default["nc"])
        kc = int(default["kc"])
        choices = {"kc": (kc // 2, kc, 2 * kc), "mc": (128, 256, 512), "nc": (nc // 2, nc, 2 * nc)}
        yield from variants(problem, default, choices)

    def regions(self, problem: Any, target: Any, config: Config) -> Regions:
        blocks = self._blocks(problem, target, config)
        if blocks["m_blocks"] == 1:
            return super().regions(problem, target, config)
        a, _ = self._packed(blocks)
        b = blocks["k_blocks"] * (blocks["kc"] + blocks["k_extra"]) * round_up(problem.n, EDGE) * blocks["panel_size"]
        sums = sum_bytes(problem, blocks["mc"] * blocks["nc"])
        return Regions({"packed_b": b + SLACK}, {"packed_a": a, "sums": sums})

    def program(self, problem: Any, target: Any, config: Config) -> Program:
        offsets = batch_offsets(problem)
        ints = self._ints(problem, target, config, offsets)
        if ints["m_blocks"] == 1:
            return super().program(problem, target, config)
        ints["groups"] = min(8, ceil_div(problem.n, EDGE))
        phases = [
            (blocked.make_prepare(True), ints["k_blocks"] * ints["groups"], 1),
            (blocked.make_private(True), ints["m_blocks"] * ints["n_blocks"], 1),
        ]
        return Program.of(
            COMMON, ints, phases, steps=problem.batch, keep=(offsets,), parallel=cost.worth_threads(problem, target),
            regions=self.regions(problem, target, config),
        )  # fmt: skip

    def estimate(self, problem: Any, target: Any) -> float:
        kind = str(self.kind(problem))
        b = piece_count(kind) * problem.batch * problem.k * problem.n
        packing = cost.pack_time(target, problem.b_order, b, "row") + cost.far_time(problem, target, "packed")
        return packing + _packed_time(problem, target, kind, next(iter(self.configs(problem, target))))


def _packed_time(problem: Any, target: Any, kind: str, config: Config) -> float:
    """A product by tiles whose B is packed."""
    per, count = _panels(kind)[1], piece_count(kind)
    steps = problem.batch * ceil_div(problem.k, int(config["kc"]) * per) * ceil_div(problem.n, int(config["nc"]))
    sizes = round_up(problem.m, WORDS), round_up(problem.n, WORDS), round_up(problem.k, per)
    padded = 2.0 * problem.batch * sizes[0] * sizes[1] * sizes[2]
    return float(
        cost.launch_time(target, "blocked")
        + 2 * steps * target.rates.phase
        + padded / peak(kind, target)
        + cost.pack_time(target, problem.a_order, count * problem.batch * problem.k * problem.m, "row")
    )


class AmxX4(Amx):
    """float16 as two pieces of bf16, and all four products: exact, as float32 holds them."""

    name = "amx_x4"

    def kind(self, problem: Any) -> str | None:
        return "x4" if problem.a_dtype == problem.b_dtype == "f16" else None

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if self.kind(problem) is None:
            return "it multiplies float16 only"
        return super().why_not_asked(problem, target)


class AmxX6(Amx):
    """float32 as three pieces of bf16, and the six products that reach its last bit."""

    name = "amx_x6"
    allowed: ClassVar[tuple[str, ...]] = ("fast", "close")
    """The settings of accuracy under which it may run."""

    def kind(self, problem: Any) -> str | None:
        return self.name[-2:] if problem.a_dtype == problem.b_dtype == "f32" else None

    def why_not_asked(self, problem: Any, target: Any) -> str | None:
        if self.kind(problem) is None:
            return "it multiplies float32 only"
        return in_pieces(self.allowed) or super().why_not_asked(problem, target)


class AmxX3(AmxX6):
    """float32 as two pieces, and three products: 15 bits of each term at least."""

    name = "amx_x3"
    # a term is off by 2^-15 of itself: 2^8 eps
    amplification = 256
    allowed = ("fast",)


class Planned(Prepacked):
    """`Prepacked` for plans: by tiles where the CPU has them."""

    def panels(self, problem: Any, target: Any) -> tuple[int, int, int]:
        kind = plan_kind(problem)
        return _panels(kind) if kind else super().panels(problem, target)

    def kernels(self, problem: Any, target: Any, MR: int, NV: int, W: int) -> dict[str, int]:
        kind = plan_kind(problem)
        return _kernels(problem, kind, W) if kind else super().kernels(problem, target, MR, NV, W)

    def configs(self, problem: Any, target: Any) -> Iterable[Config]:
        kind = plan_kind(problem)
        if not kind:
            return super().configs(problem, target)
        # as there, the panels do not depend on m
        return (_config(target, kind, 16, 256, max(EDGE, min(512, round_up(ceil_div(problem.n, 4), EDGE)))),)

    def packed_time(self, problem: Any, target: Any) -> float:
        kind = plan_kind(problem)
        if not kind:
            return super().packed_time(problem, target)
        return _packed_time(problem, target, kind, next(iter(self.configs(problem, target))))
