"""Products with a long k: as a batch of products with a bounded one, whose results are added.

A solver adds the terms of an element one after the other, in some lanes, or its blocks of k into out: 3e8 ones in 16
lanes of float32 came to 2.7e8, where adding 1 to 2^24 changes nothing.  Here no solver sees more than `TERMS` of k, and
what it gives for each is added pairwise (parts.py): the error grows with the logarithm of k.  Bound.  Parts take
m n k / TERMS elements of scratch memory and one read of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

from numbaprims.cpu import parts
from numbaprims.cpu.gemm.arguments import ARGS, batch_offsets, bias_dtype, common_ints
from numbaprims.cpu.gemm.blocked import begins, finish
from numbaprims.cpu.gemm.finish import activation_address, make_finish
from numbaprims.cpu.jit import RangeKernel, range_kernel
from numbaprims.cpu.parts import add_parts
from numbaprims.cpu.program import Part, Program, Region, array, join
from numbaprims.cpu.simd import address_of, lanes, pointer_from_address, store_first
from numbaprims.cpu.solver import Config, Regions, Solver
from numbaprims.dtypes import DTYPES


def is_long(problem: Any) -> bool:
    """Whether sums along k are cut; those of integers are exact."""
    return problem.k > parts.TERMS and problem.accumulate in ("f32", "f64")


@functools.cache
def make_add_parts(acc: str, W: int) -> RangeKernel:
    """out = act(alpha (the sum of the parts) + beta c + bias); tile = a row of a product.

    `packed` holds k_blocks parts of all products, m x n each.
    """

    @range_kernel("gemm_add_parts", ARGS.types(), spec=(acc, W))
    def gemm_add_parts(args, worker, lo, hi):  # type: ignore[no-untyped-def]
        step = args.batch * args.m * args.n
        for row in range(lo, hi):
            product, i = divmod(row, args.m)
            total = pointer_from_address(address_of(args.packed) + args.sum_size * row * args.n, acc)
            for j in range(0, args.n, W):
                left = min(args.n - j, W)
                store_first(total, j, left, add_parts(total, step, args.k_blocks, j, left, W, acc))
            out = begins(args, product).out + i * args.out_rs
            c = begins(args, product).c + i * args.c_rs
            finish(
                args, address_of(args.out) + args.out_size * out, address_of(total), args.n,
                address_of(args.c) + args.c_size * c, i, 0, 1, args.n,
            )  # fmt: skip

    return gemm_add_parts


def end_sum(problem: Any, target: Any, count: int) -> Program:
    """What ends a product from `count` parts of it, given as `packed`."""
    W = lanes(problem.accumulate, target.vector_bytes)
    offsets = batch_offsets(problem)
    ints = common_ints(problem, offsets, activation_address(problem, target)) | {
        "k_blocks": count,
        "finish": make_finish(problem.accumulate, problem.out_dtype, bias_dtype(problem), W).address,
    }
    rows = problem.batch * problem.m
    tiles = [(make_add_parts(problem.accumulate, W), rows, max(1, rows // 32))]
    return Program.of(ARGS, ints, tiles, keep=(offsets,), parallel=problem.m * problem.n > 1 << 16)


def _parts(problem: Any) -> list[Any]:
    """The batch of whole parts, and the product of what is left of k; their results lie one behind the other."""
    p, s = problem, problem.strides
    whole, rest = divmod(p.k, parts.TERMS)
    size = p.m * p.n
    inner = tuple(itertools.accumulate((size, *reversed(p.batch_shape[1:])), lambda x, y: x * y))[::-1]
    inner = inner if p.batch_shape else ()
    found = []
    for count, k, first in ((whole, parts.TERMS, 0), (1, rest, whole * parts.TERMS)):
        if k:
            along = (k * s.a[1], k * s.b[0], p.batch * size, 0)
            batch = tuple(
                (step, *old) for step, old in zip(along, (*s.batch[:2], inner, (0,) * len(inner)), strict=True)
            )
            strides = s._replace(
                out=(p.n, 1), c=(0, 0), bias=0, batch=batch,
                first=(first * s.a[1], first * s.b[0], first // parts.TERMS * p.batch * size, 0),
            )  # fmt: skip
            found.append(
                dataclasses.replace(
                    p,
                    k=k,
                    batch=count * p.batch,
                    batch_shape=(count, *p.batch_shape),
                    strides=strides,
                    out_dtype=p.accumulate,
                    out_order="row",
                    has_c=False,
                    bias="none",
                    scaled=False,
                    activation=dataclasses.replace(p.activation, kind="identity", parameters=()),
                )  # fmt: skip
            )
    return found


def in_parts(cls: type[Solver]) -> type[Solver]:
    """Let a solver of products take any k: a long one in parts."""
    program, room = cls.program, cls.workspace

    @functools.wraps(room)
    def workspace_of(self: Any, problem: Any, target: Any, config: Config) -> int:
        if not is_long(problem):
            return room(self, problem, target, config)
        inside = max(room(self, part, target, config) for part in _parts(problem))
        return Regions(part_bytes(problem)).nbytes + inside

    @functools.wraps(program)
    def in_parts(self: Any, problem: Any, target: Any, config: Config, **more: Any) -> Program:
        if not is_long(problem):
            return program(self, problem, target, config, **more)
        steps = [
            Part(program(self, part, target, config), [Region("parts"), array(1), array(2)], [1.0])
            for part in _parts(problem)
        ]
        end = end_sum(problem, target, -(-problem.k // parts.TERMS))
        steps.append(Part(end, [array(0), None, None, array(3), array(4), Region("parts")], range(5)))
        return join(steps, shared=part_bytes(problem))

    cls.workspace, cls.program = workspace_of, in_parts  # type: ignore[method-assign]
    return cls


def part_bytes(problem: Any) -> dict[str, int]:
    """Scratch memory of all parts."""
    size = DTYPES[problem.accumulate].itemsize
    return {"parts": -(-problem.k // parts.TERMS) * problem.batch * problem.m * problem.n * size}
