"""Matrix products on the CPU: solvers, the best first."""

from numbaprims.cpu.gemm.amx import Amx, AmxX3, AmxX4, AmxX6, Planned
from numbaprims.cpu.gemm.dots import Dots
from numbaprims.cpu.gemm.inner import Inner
from numbaprims.cpu.gemm.naive import Naive
from numbaprims.cpu.gemm.solvers import HEIGHTS, Blocked, Direct, Private
from numbaprims.cpu.gemm.split import Split
from numbaprims.cpu.gemm.vector import Vector

SOLVERS = (
    Amx(), AmxX4(), AmxX3(), AmxX6(), Blocked(), Private(), Direct(), Dots(), Inner(), Split(), Vector(), Naive(),
)  # fmt: skip
PREPARED = Planned()


def warm_specs() -> list[tuple[str, tuple[object, ...]]]:
    """The factories, and their arguments, of the kernels that first products want."""
    from numbaprims.cpu import target as _target
    from numbaprims.cpu.simd import lanes
    from numbaprims.cpu.simd.dot import dot_feature

    target = _target.current()
    base = "numbaprims.cpu.gemm."
    wide = target.isa in ("avx512", "neon")
    specs: list[tuple[str, tuple[object, ...]]] = [
        (base + f"blocked:make_{name}", ()) for name in ("pack_b", "shared", "private", "direct_driver", "prepare")
    ]
    for dtype, acc in (("f32", "f32"), ("f64", "f64"), ("f16", "f32"), ("bf16", "f32")):
        W = lanes(acc, target.vector_bytes)
        dot = dtype == "bf16" and dot_feature("bf16", W) != "portable"
        for mr in HEIGHTS if wide else (6,):
            if dot:
                specs.append((base + "vnni:make_pack_groups", (dtype, mr, W, 2, 0, False, dot_feature("u8s8", W))))
                specs.append((base + "vnni:make_multiply_vnni", ("bf16", mr, 2, W, 2, False)))
            else:
                specs.append((base + "pack:make_pack", (dtype, acc, mr, W)))
                specs.append((base + "multiply:make_multiply", (acc, mr, 2, W)))
        if dot:
            specs.append((base + "vnni:make_pack_groups", (dtype, 2 * W, W, 2, 0, False, dot_feature("u8s8", W))))
        else:
            specs.append((base + "pack:make_pack", (dtype, acc, 2 * W, W)))
            shapes = ((8, 2), (10, 2), (9, 2), (8, 1), (1, 8), (2, 6), (4, 4)) if wide else ((4, 2),)
            specs += [(base + "multiply:make_direct", (dtype, dtype, acc, mr, nv, W, False, True)) for mr, nv in shapes]
        specs.append((base + "finish:make_finish", (acc, dtype, dtype, W)))
    return specs
