"""How a direct convolution is cut into tiles, and what it costs."""

from __future__ import annotations

from typing import Any

import numpy as np

from numbaprims.cpu.conv import direct_planes
from numbaprims.cpu.conv.arguments import itemsize
from numbaprims.cpu.drivers import Program
from numbaprims.cpu.gemm import cost
from numbaprims.cpu.gemm.cost import ceil_div, round_up
from numbaprims.cpu.gemm.finish import activation_address
from numbaprims.cpu.gemm.pack import make_pack
from numbaprims.cpu.simd import lanes

SLACK = 256  # bytes behind panels, which may be written a vector past their end
COPY = 0.12e-9  # seconds an element of the padded copy takes
TILE = 12e-9  # seconds a tile takes before its first and after its last tap
FAR = 1.5e-12  # seconds a byte of the copy takes where it exceeds the first-level cache


class Planes:
    """A convolution of planes, or the data gradient of one with stride 1 (flipped windows over dy)."""

    def __init__(self, problem: Any, target: Any) -> None:
        p, s = problem, problem.strides
        self.problem, self.target = problem, target
        self.acc = p.accumulate
        self.size = itemsize(self.acc)
        self.W = lanes(self.acc, target.vector_bytes)
        self.MR, self.NV = (8, 3) if target.isa in ("avx512", "neon") else (4, 3)
        data = p.direction == "data"
        (_, R, S), (_, DH, DW), (_, self.SH, self.SW) = p.kernel, p.dilation, p.stride
        self.in_size, self.out_size = (p.y_size, p.x_size) if data else (p.x_size, p.y_size)
        self.in_steps, self.out_steps = (s.y, s.x) if data else (s.x, s.y)
        self.depth, self.filters = (p.group_k, p.group_c) if data else (p.group_c, p.group_k)
        self.reach = (R - 1) * DH, (S - 1) * DW
        pad = p.padding[1:]
        self.pad = tuple(r - one for r, one in zip(self.reach, pad, strict=True)) if data else pad
        self.extra = self.reach[1] // self.SW
        self.pitch = max(self.out_size[2] + self.extra, self.W)
        self.count = self.depth * R * S
        w_k, w_c = (s.w[1], s.w[0]) if data else (s.w[0], s.w[1])
        self.w_group = p.group_k * s.w[0]
        self.w_k = w_k
        shape = (self.depth, R, S)
        c, r, q = np.indices(shape).reshape(3, -1)
        w_r, w_q = (R - 1 - r, S - 1 - q) if data else (r, q)
        w_taps = c * w_c + w_r * s.w[3] + w_q * s.w[4]
        steps = np.diff(w_taps)
        self.w_step = int(steps[0]) if len(steps) else 1
        self.w_taps = None if w_taps[0] == 0 and (steps == self.w_step).all() else w_taps.astype(np.int64)
        self.band = self._best_band()
        self.rows = (self.band - 1) * self.SH + self.reach[0] + 1
        # a vector behind the last row, and a tile's pixels behind the last of the band
        self.copy_phase = ceil_div(self.rows, self.SH) * self.pitch + self.W * (self.NV + 1)
        self.copy_c = self.SH * self.SW * self.copy_phase
        i, j = r * DH, q * DW
        taps = c * self.copy_c + (i % self.SH * self.SW + j % self.SW) * self.copy_phase
        self.taps = (taps + i // self.SH * self.pitch + j // self.SW).astype(np.int64)
        self.copy_bytes = round_up(self.depth * self.copy_c * self.size, 64)
        self.bands = ceil_div(self.out_size[1], self.band)
        panels = ceil_div(self.filters, self.MR)
        blocks = min(panels, ceil_div(8, p.n * p.groups * self.bands))
        self.block = ceil_div(panels, blocks) * self.MR
        self.blocks = ceil_div(self.filters, self.block)
        self.panel_bytes = round_up(panels * self.MR * self.count * self.size + SLACK, 64)
        self.packed = p.groups * self.panel_bytes
        split = p.activation.kind != "identity" and p.out_dtype != self.acc
        self.room = round_up(self.MR * self.band * self.out_size[2] * self.size, 64) if split else 0
        self.shared = 0 if p.prepared else self.packed
        self.worker = self.copy_bytes + self.room

    def seconds(self, band: int) -> float:
        """What the tiles and copies of one group of one image cost with bands of so many rows."""
        pixels, rows = self.NV * self.W, self.out_size[1]
        peak = 0.95 * float(cost.peak(self.problem, self.target))
        panels = ceil_div(self.filters, self.MR)
        work = 2.0 * self.MR * pixels * self.count / peak + TILE
        if self.copied_bytes(band) > self.target.l1d:
            work += FAR * self.size * (pixels + self.W) * self.count / self.problem.kernel[2]
        total = 0.0
        for count, height in ((rows // band, band), (1, rows % band)):
            if height and count:
                tiles = panels * ceil_div((height - 1) * self.pitch + self.out_size[2], pixels)
                copied = ((height - 1) * self.SH + self.reach[0] + 1) * self.depth * self.pitch * self.SW
                total += count * (tiles * work + copied * COPY)
        return float(total)

    def copied_bytes(self, band: int) -> int:
        """Bytes of the copy of a band."""
        return int(((band - 1) * self.SH + self.reach[0] + 1) * self.depth * self.pitch * self.SW * self.size)

    def _best_band(self) -> int:
        rows = self.out_size[1]
        fits = [b for b in range(1, rows + 1) if self.copied_bytes(b) <= self.target.l2 // 2]
        # at least 4 bands where there are rows for them: threads want tiles
        fits = [b for b in fits if b <= max(1, ceil_div(rows, 4))] or [1]
        near = [b for b in fits if self.copied_bytes(b) <= self.target.l1d * 3 // 4]
        return min(near if len(near) > 2 else fits, key=self.seconds)

    def estimate(self) -> float:
        """Seconds of the whole."""
        p = self.problem
        total = 2e-6 + p.n * p.groups * self.seconds(self.band)
        if not p.prepared:
            each = cost.PACK_ACROSS if self.w_taps is None else cost.PACK_SCALAR
            total += p.groups * self.filters * self.count * each
        return float(total)

    def program(self, only_pack: bool = False) -> Program:
        """The whole, or the packing of the weights of a plan."""
        p, s = self.problem, self.problem.strides
        in_size, out_size, in_steps, out_steps = self.in_size, self.out_size, self.in_steps, self.out_steps
        values = {
            "groups": p.groups, "depth": self.depth, "filters": self.filters,
            "blocks": self.blocks, "block": self.block, "bands": self.bands, "band": self.band,
            "in_h": in_size[1], "in_w": in_size[2], "out_h": out_size[1], "out_w": out_size[2],
            "stride_h": self.SH, "row": -self.pad[0], "column": -self.pad[1],
            "in_n": in_steps[0], "in_c": in_steps[1], "in_row": in_steps[3],
            "out_n": out_steps[0], "out_k": out_steps[1], "out_row": out_steps[3],
            "c_n": s.c[0], "c_k": s.c[1], "c_row": s.c[3],
            "w_group": self.w_group, "w_k": self.w_k, "w_step": self.w_step,
            "pitch": self.pitch, "copy_c": self.copy_c, "copy_phase": self.copy_phase, "copy_rows": self.rows,
            "copy_columns": out_size[2] + self.extra, "taps": int(self.taps.ctypes.data),
            "w_taps": 0 if self.w_taps is None else int(self.w_taps.ctypes.data), "count": self.count,
            "has_bias": int(p.bias), "bias_step": s.bias, "activation": activation_address(p, self.target),
            "pack": make_pack(p.w_dtype, self.acc, self.MR, self.W).address, "panel_bytes": self.panel_bytes,
            "shared_bytes": self.shared, "worker_bytes": self.worker, "copy_bytes": self.copy_bytes,
        }  # fmt: skip
        kernel = direct_planes.make_planes(
            p.in_dtype, self.acc, self.MR, self.NV, self.W, self.SW, int(p.has_c), int(self.room > 0)
        )  # fmt: skip
        phases = [(kernel, p.n * p.groups * self.blocks * self.bands, 1)]
        if only_pack or not p.prepared:
            panels = p.groups * ceil_div(self.filters, self.MR)
            pack = (direct_planes.make_pack_filters(p.w_dtype, self.acc, self.MR), panels, ceil_div(panels, 8))
            phases = [pack] if only_pack else [pack, *phases]
        words = [int(values[name]) for name in direct_planes.ARGS.ints]
        return Program(words, phases, keep=(self.taps, self.w_taps))
