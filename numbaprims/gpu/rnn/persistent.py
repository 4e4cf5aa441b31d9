"""The program whose time loop is one launch a layer, and what a block of it holds."""

from __future__ import annotations

from typing import Any, NamedTuple

from numbaprims.dtypes import DTYPES
from numbaprims.gpu.launch import Part, Together, aligned, step
from numbaprims.gpu.rnn.cells import INTS, Form
from numbaprims.gpu.rnn.forward import Forward
from numbaprims.gpu.rnn.network import Matrix, behind, joined, values_of
from numbaprims.gpu.rnn.persistent_kernel import make_persistent, pad_of
from numbaprims.ops._rnn_problem import B_HH, SAVED, W_HH, RnnProblem

KIB = 1024
#: Shared memory is asked for in steps of so many bytes, a kernel for each.
UNIT = 16 * KIB
#: Bytes between the counters of two directions: a line of the second-level cache.
LINE = 128


class Share(NamedTuple):
    """What a block has."""

    units: int
    blocks: int
    """Of a direction; of all of them never more than there are multiprocessors, so that all run at a time."""
    columns: int
    """Sequences that a warp takes at a time."""
    chunk: int
    """Sequences whose states lie in shared memory at a time; 0 where not even the weights fit."""
    tensor: bool
    """Whether tensor cores multiply."""
    shared: int


def share_of(p: RnnProblem, target: Any) -> Share:
    """Units are dealt evenly to the multiprocessors; what the weights leave of shared memory is for states."""
    blocks = max(1, target.multiprocessors // p.directions)
    units = -(-p.hidden // blocks)
    item, wide = DTYPES[p.dtype].itemsize, DTYPES[DTYPES[p.dtype].accumulate].itemsize
    tensor = item == 2 and p.batch >= 8 and p.state % 32 == 0
    each = (p.state + pad_of(tensor)) * item
    weights, each = p.gates * units * each, each + 2 * p.gates * units * wide
    chunk = min(p.batch, max(0, (target.shared_per_block - weights) // each))
    columns = min(8, 1 << max(0, chunk - 1).bit_length())
    if chunk < p.batch:
        columns = 8 if tensor else min(8, 1 << max(0, chunk.bit_length() - 1))
        chunk -= chunk % columns
    shared = min(target.shared_per_block, -(-(weights + chunk * each) // UNIT) * UNIT)
    return Share(units, -(-p.hidden // units), columns, chunk, tensor, shared)


class PersistentForward(Forward):
    """Of inference, and of training's way forward."""

    def operand(self, h: Part, h0: Part | None, each: dict[str, Any]) -> Part:
        # of even and of odd steps: others still read the one when the other is written; the kernel begins with h
        p = self.p
        return self.region("hx", 2 * p.directions * p.batch * p.state, p.dtype)

    def loop(self, layer: int, g: Matrix, h: Part, hx: Part, c: Part, y: Matrix) -> None:
        p, share = self.p, share_of(self.p, self.target)
        D, H, P, N, wide = p.directions, p.hidden, p.state, p.batch, p.gates * p.hidden
        rows, other = p.gates * share.units, D * N * P
        arrived = self.region("arrived", p.layers * D * LINE // 4, "f32")
        if layer == 0:
            self.rows(1, p.layers * D * LINE // 4, arrived, None, ("f32", "f32"))
        arrived = behind(arrived, layer * D * LINE)
        peepholes = self.peepholes(layer)
        saved = h
        if p.way == "train" and SAVED in p.lies.given:
            saved = behind(self.saved(layer), N * H * self.item)
        form = Form(p.cell, p.dtype, self.compute, any(peepholes), p.clipped, p.way == "train", persistent=True)
        ints = {
            "s_d": 0, "s_row": rows, "s_gate": share.units, "hidden": H, "g_d": p.rows * wide, "g_row": g.row,
            "g_step": g.step, "h_d": N * P, "h_row": P, "c_d": N * H, "y_d": P, "y_row": y.row, "y_step": y.step,
            "saved_d": (N + p.rows) * H, "saved_step": H * (1 if p.lengths else N), "m_d": 0,
            "given": share.chunk * rows,
        }  # fmt: skip
        own = [self.given(p.number(layer, d, which)) for which in (W_HH, B_HH) for d in (0, D - 1)]
        # the kernel takes the sums from shared memory, and no second product
        values = values_of((None, g.place, h, hx, c, y.place, None, saved, *peepholes), *(ints[name] for name in INTS))
        table = values_of((self.table("offsets"),), N, H, p.steps, int(p.reverse))
        rest = values_of((*own, arrived), P, share.units, share.chunk, other, int(own[2] is not None))
        weights = [p.number(layer, d, W_HH) for d in (0, D - 1)]
        kernel = make_persistent(form, p.lengths, share.columns, share.tensor, share.shared)
        made = joined(
            values, table, lambda arrays, floats, at: (floats[0],), rest,
            lambda arrays, floats, at: (int(aligned(16, *(arrays[number] for number in weights))),),
        )  # fmt: skip
        self.steps.append(Together(step(kernel, (share.blocks, D), made)))
