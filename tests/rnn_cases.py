"""Recurrent networks drawn for tests, and ONNX's definitions of its nodes, one gate and one sequence after another."""

import numpy as np

from numbaprims import RnnWeights
from numbaprims.recurrent.parts import CELLS, RnnPart

#: (cell, reset_after) of every definition.
DEFINITIONS = [("lstm", True), ("gru", True), ("gru", False), ("rnn_tanh", True), ("rnn_relu", True)]


def draw_weights(
    rng, cell, *, layers=1, directions=1, inputs=3, hidden=4, proj=0, bias=True, peephole=False, skip=False, after=True,
    merge="concat",
) -> RnnWeights:  # fmt: skip
    """A network of float64 with weights of about 0.5."""
    rows, out = CELLS[cell] * hidden, proj or hidden
    lists = {"w_ih": [], "w_hh": [], "b_ih": [], "b_hh": [], "w_hr": [], "peephole": []}

    def draw(*shape):
        return rng.uniform(-0.9, 0.9, shape)

    for k in range(layers * directions):
        first = k < directions
        width = inputs if first else out * (directions if merge == "concat" else 1)
        lists["w_ih"].append(None if first and skip else draw(rows, width))
        lists["w_hh"].append(draw(rows, out))
        lists["b_ih"].append(draw(rows))
        lists["b_hh"].append(draw(rows))
        lists["w_hr"].append(draw(proj, hidden))
        lists["peephole"].append(draw(3, hidden))
    for name, given in (("b_ih", bias), ("b_hh", bias), ("w_hr", proj), ("peephole", peephole)):
        if not given:
            lists[name] = None
    return RnnWeights.from_arrays(cell, **lists, directions=directions, reset_after=after, skip_input=skip)


def cast(weights: RnnWeights, dtype) -> RnnWeights:
    """The same network in another dtype."""
    parts = tuple(RnnPart(*(x if x is None else np.ascontiguousarray(x, dtype) for x in p)) for p in weights.parts)
    return RnnWeights(weights.cell, parts, weights.directions, weights.reset_after, weights.skip_input)


def draw_onnx(rng, cell, directions, *, inputs=3, hidden=4, bias=True, peephole=False):
    """(W, R, B, P) of a node."""
    rows = CELLS[cell] * hidden
    shapes = (directions, rows, inputs), (directions, rows, hidden), (directions, 2 * rows), (directions, 3 * hidden)
    arrays = [rng.uniform(-0.9, 0.9, shape) for shape in shapes]
    return [*arrays[:2], arrays[2] if bias else None, arrays[3] if peephole else None]


def sigmoid(s):
    return 1 / (1 + np.exp(-s))


def onnx_node(cell, x, W, R, B, P, h0, c0, lengths, *, direction="forward", linear_before_reset=0, clip=0.0):
    """(Y, Y_h, Y_c) of ONNX's operator: Y (T, D, N, H), states (D, N, H)."""
    steps, batch, _ = x.shape
    directions, _, hidden = R.shape
    Y = np.zeros((steps, directions, batch, hidden))
    Y_h, Y_c = np.array(h0, np.float64), np.array(c0, np.float64)

    def bounded(s):
        return np.clip(s, -clip, clip) if clip else s

    for d in range(directions):
        w, r = np.split(W[d], CELLS[cell]), np.split(R[d], CELLS[cell])
        b = [np.zeros(hidden)] * (2 * CELLS[cell]) if B is None else np.split(B[d], 2 * CELLS[cell])
        wb, rb = b[: CELLS[cell]], b[CELLS[cell] :]
        p = [np.zeros(hidden)] * 3 if P is None else np.split(P[d], 3)
        for n in range(batch):
            times = range(lengths[n])
            h, c = Y_h[d, n], Y_c[d, n]
            for t in reversed(times) if direction == "reverse" or d else times:
                s = [w[k] @ x[t, n] + wb[k] for k in range(CELLS[cell])]
                if cell == "lstm":  # i o f c
                    i = sigmoid(bounded(s[0] + r[0] @ h + rb[0] + p[0] * c))
                    f = sigmoid(bounded(s[2] + r[2] @ h + rb[2] + p[2] * c))
                    new = f * c + i * np.tanh(bounded(s[3] + r[3] @ h + rb[3]))
                    h = sigmoid(bounded(s[1] + r[1] @ h + rb[1] + p[1] * new)) * np.tanh(new)
                    c = new
                elif cell == "gru":  # z r h
                    z = sigmoid(bounded(s[0] + r[0] @ h + rb[0]))
                    reset = sigmoid(bounded(s[1] + r[1] @ h + rb[1]))
                    if linear_before_reset:
                        hidden_gate = np.tanh(bounded(s[2] + reset * (r[2] @ h + rb[2])))
                    else:
                        hidden_gate = np.tanh(bounded(s[2] + r[2] @ (reset * h) + rb[2]))
                    h = (1 - z) * hidden_gate + z * h
                else:
                    h = bounded(s[0] + r[0] @ h + rb[0])
                    h = np.tanh(h) if cell == "rnn_tanh" else np.maximum(h, 0)
                Y[t, d, n] = h
            Y_h[d, n], Y_c[d, n] = h, c
    return Y, Y_h, Y_c


def in_onnx_order(y, directions):
    """(T, N, D * H) as ONNX's Y (T, D, N, H)."""
    steps, batch, width = y.shape
    return y.reshape(steps, batch, directions, width // directions).swapaxes(1, 2)
