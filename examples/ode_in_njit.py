"""A physics loop with a neural network inside, compiled as one: the vector field of a neural ODE under RK4.

A step of RK4 asks the network four times, each time with what the last answer gave. For one trajectory that is a
vector of four numbers through three layers: a call of NumPy or torch from Python costs more than the layer itself.
Here the loop, the arithmetic of the method and the network are one `@njit` function. For many trajectories the same
function takes a block of them, and `prange` gives the blocks to the threads.

    python examples/ode_in_njit.py [--steps 1000] [--hidden 64] [--trajectories 256]

All rivals do the same arithmetic on the same float32 numbers, and must agree at the end. torch runs in inference mode,
on one thread for the single trajectory, where more only cost it time.
"""

from __future__ import annotations

import argparse
import time

import numba
import numpy as np

import numbaprims
import numbaprims.jitted

numbaprims.jitted.init()  # where numbaprims is installed, Numba does this by itself

STATE, BLOCK = 4, 32
# all of one type: a float32 array times a Python number is float64 in Numba
DT, HALF, SIXTH, TWO = np.float32(0.01), np.float32(0.01 / 2), np.float32(0.01 / 6), np.float32(2)


def make_network(hidden, seed=0):
    """Weights and biases of three layers, whose flow stays bounded."""
    rng = np.random.default_rng(seed)
    shapes = ((hidden, STATE), (hidden, hidden), (STATE, hidden))
    weights = [(rng.standard_normal(shape) / shape[1] ** 0.5).astype(np.float32) for shape in shapes]
    biases = [(0.1 * rng.standard_normal(shape[0])).astype(np.float32) for shape in shapes]
    return tuple(x for pair in zip(weights, biases, strict=True) for x in pair)


# ------------------------------------------------------------------ the loop with the network inside
@numba.njit
def field(y, network, h1, h2, dy):
    w1, b1, w2, b2, w3, b3 = network
    numbaprims.linear(y, w1, b1, activation="tanh", out=h1)
    numbaprims.linear(h1, w2, b2, activation="tanh", out=h2)
    numbaprims.linear(h2, w3, b3, out=dy)
    dy -= y


@numba.njit
def integrate(y, network, steps):
    """RK4 of one trajectory, or of the rows of a block."""
    y = y.copy()
    h1 = np.empty(y.shape[:-1] + network[1].shape, y.dtype)
    h2 = np.empty_like(h1)
    k1, k2, k3, k4 = np.empty_like(y), np.empty_like(y), np.empty_like(y), np.empty_like(y)
    for _ in range(steps):
        field(y, network, h1, h2, k1)
        field(y + HALF * k1, network, h1, h2, k2)
        field(y + HALF * k2, network, h1, h2, k3)
        field(y + DT * k3, network, h1, h2, k4)
        y += SIXTH * (k1 + TWO * k2 + TWO * k3 + k4)
    return y


@numba.njit(parallel=True)
def integrate_all(ys, network, steps):
    """Each thread takes blocks of trajectories, and calls the serial kernels."""
    out = np.empty_like(ys)
    for block in numba.prange((len(ys) + BLOCK - 1) // BLOCK):
        rows = slice(block * BLOCK, (block + 1) * BLOCK)
        out[rows] = integrate(ys[rows], network, steps)
    return out


# ------------------------------------------------------------------ the same without us, in Numba and in NumPy
@numba.njit(fastmath=True)
def layer_loops(x, w, b, out):
    for i in range(len(b)):
        total = b[i]
        for j in range(len(x)):
            total += w[i, j] * x[j]
        out[i] = total


@numba.njit(fastmath=True)
def field_loops(y, network, h1, h2, dy):
    w1, b1, w2, b2, w3, b3 = network
    layer_loops(y, w1, b1, h1)
    for i in range(len(h1)):
        h1[i] = np.tanh(h1[i])
    layer_loops(h1, w2, b2, h2)
    for i in range(len(h2)):
        h2[i] = np.tanh(h2[i])
    layer_loops(h2, w3, b3, dy)
    dy -= y


@numba.njit(fastmath=True)
def integrate_loops(y, network, steps):
    y = y.copy()
    h1 = np.empty_like(network[1])
    h2 = np.empty_like(h1)
    k1, k2, k3, k4 = np.empty_like(y), np.empty_like(y), np.empty_like(y), np.empty_like(y)
    for _ in range(steps):
        field_loops(y, network, h1, h2, k1)
        field_loops(y + HALF * k1, network, h1, h2, k2)
        field_loops(y + HALF * k2, network, h1, h2, k3)
        field_loops(y + DT * k3, network, h1, h2, k4)
        y += SIXTH * (k1 + TWO * k2 + TWO * k3 + k4)
    return y


def rk4(field, y, steps):
    """The method in Python, for a field that gives new arrays or tensors."""
    dt, half, sixth = float(DT), float(HALF), float(SIXTH)
    for _ in range(steps):
        k1 = field(y)
        k2 = field(y + half * k1)
        k3 = field(y + half * k2)
        k4 = field(y + dt * k3)
        y = y + sixth * (k1 + 2 * k2 + 2 * k3 + k4)
    return y


def integrate_numpy(y, network, steps):
    w1, b1, w2, b2, w3, b3 = network
    h1 = np.empty(y.shape[:-1] + b1.shape, np.float32)
    h2 = np.empty_like(h1)

    def field(y):
        np.matmul(y, w1.T, out=h1)
        np.add(h1, b1, out=h1)
        np.tanh(h1, out=h1)
        np.matmul(h1, w2.T, out=h2)
        np.add(h2, b2, out=h2)
        np.tanh(h2, out=h2)
        return h2 @ w3.T + b3 - y

    return rk4(field, y, steps)


def integrate_public(y, network, steps):
    """Our functions, called from Python."""
    w1, b1, w2, b2, w3, b3 = network

    def field(y):
        h = numbaprims.linear(y, w1, b1, activation="tanh")
        h = numbaprims.linear(h, w2, b2, activation="tanh")
        return numbaprims.linear(h, w3, b3) - y

    return rk4(field, y, steps)


def integrate_torch(y, network, steps):
    import torch

    torch.set_num_threads(1 if y.ndim == 1 else numba.get_num_threads())
    linear, y = torch.nn.functional.linear, torch.from_numpy(y)
    w1, b1, w2, b2, w3, b3 = map(torch.from_numpy, network)

    def field(y):
        h = torch.tanh(linear(y, w1, b1))
        h = torch.tanh(linear(h, w2, b2))
        return linear(h, w3, b3) - y

    with torch.inference_mode():
        return rk4(field, y, steps).numpy()


# ------------------------------------------------------------------ the clock
def report(title, rivals, y, network, steps, rounds=5):
    """Seconds of each rival, the least of some rounds in turns; they must agree."""
    seconds, results = dict.fromkeys(rivals, float("inf")), {}
    for function in rivals.values():
        function(y, network, 2)  # compiles
    for _ in range(rounds):
        for name, function in rivals.items():
            begin = time.perf_counter()
            results[name] = function(y, network, steps)
            seconds[name] = min(seconds[name], time.perf_counter() - begin)
    first = next(iter(rivals))
    print(title)
    for name in rivals:
        np.testing.assert_allclose(results[name], results[first], rtol=1e-3, atol=1e-4)
        print(f"  {name:32s} {1e6 * seconds[name] / steps:10.2f} us a step {seconds[name] / seconds[first]:8.2f} x")
    return seconds


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--trajectories", type=int, default=256)
    given = parser.parse_args(argv)
    network = make_network(given.hidden)
    ys = np.random.default_rng(1).standard_normal((given.trajectories, STATE)).astype(np.float32)
    try:
        import torch  # noqa: F401
    except ImportError:
        print("torch is not installed")
        with_torch = False
    else:
        with_torch = True

    size = f"{STATE} -> {given.hidden} -> {given.hidden} -> {STATE}, float32, RK4"
    rivals = {
        "numbaprims inside @njit": integrate,
        "loops inside @njit, fastmath": integrate_loops,
        "numbaprims from Python": integrate_public,
        "NumPy from Python": integrate_numpy,
        **({"torch from Python": integrate_torch} if with_torch else {}),
    }
    one = report(f"one trajectory, {size}", rivals, ys[0], network, given.steps)
    rivals = {
        "numbaprims inside @njit, prange": integrate_all,
        "numbaprims from Python, one batch": integrate_public,
        "NumPy from Python, one batch": integrate_numpy,
        **({"torch from Python, one batch": integrate_torch} if with_torch else {}),
    }
    title = f"{given.trajectories} trajectories on {numba.get_num_threads()} threads, {size}"
    together = report(title, rivals, ys, network, max(2, given.steps // 4))
    return one, together


if __name__ == "__main__":
    main()
