"""Layers that run depth first: time a block of <max-pooling, batch norm, ReLU> over how many blocks follow one another.

Layer by layer each image goes to memory and back three times a block. A stack takes a few rows through all its blocks
before the next rows, so that what lies between two layers stays in the cache of a core: the time a block falls with the
depth instead. The strategies are those of BrainSlug (Weber et al., 2018, figure 10), and what a call does by itself.

    python examples/depth_first.py [--depths 1,2,5,10,20,40] [--images 4x64x56x56] [--threads 1] [--plot depth.png]

torch, plain and compiled by inductor, computes the same where it is installed; all must agree. Without --plot, or
without matplotlib, a table is all there is.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import numbaprims
from numbaprims.stacks.operations import Pointwise, Window

BLOCK = (Window("max", (3, 3), (1, 1), (1, 1), (1, 1)), Pointwise("batch_norm", 3), Pointwise("relu"))
STRATEGIES = {"auto": {}, "one step": {"most": 1}, "five steps": {"most": 5}, "unrestricted": {"limit": -1}}


def make_parameters(channels, depth, seed=0):
    """Mean, factor and shift of each block and channel, from 0.5 to 1.5."""
    return np.random.default_rng(seed).uniform(0.5, 1.5, (channels, 3 * depth)).astype(np.float32)


def stacks(x, parameters, depth):
    """A call for each strategy."""
    operations, out = BLOCK * depth, np.empty_like(x)

    def call(words):
        return lambda: numbaprims.stack(x, operations, parameters, out=out, **words)

    return {name: call(words) for name, words in STRATEGIES.items()}


def layers(x, parameters, depth):
    """The same, one public function after another, in memory that is allocated beforehand."""
    ones, y = np.ones(x.shape[1], np.float32), np.empty_like(x)
    pooled = np.empty_like(x)
    columns = [np.ascontiguousarray(column) for column in parameters.T]

    def call():
        given = x
        for k in range(depth):
            mean, factor, shift = columns[3 * k : 3 * k + 3]
            numbaprims.max_pool(given, 3, stride=1, padding=1, out=pooled)
            numbaprims.batch_norm(pooled, factor, shift, mean, ones, eps=0.0, out=y)
            given = numbaprims.relu(y, out=y)
        return y

    return {"layer by layer": call}


def torch_calls(x, parameters, depth):
    """torch's layers, plain and compiled; none where torch is not installed."""
    try:
        import torch
    except ImportError:
        return {}
    module = torch.nn.Sequential()
    for k in range(depth):
        norm = torch.nn.BatchNorm2d(x.shape[1], eps=0.0)
        mean, factor, shift = torch.from_numpy(parameters.T[3 * k : 3 * k + 3].copy())
        norm.running_mean.data, norm.weight.data, norm.bias.data = mean, factor, shift
        module.extend([torch.nn.MaxPool2d(3, 1, 1), norm, torch.nn.ReLU(inplace=True)])
    module.eval().requires_grad_(False)
    torch.compiler.reset()  # it stops compiling after eight modules of a class
    compiled = torch.compile(module, fullgraph=True, dynamic=False)
    images = torch.from_numpy(x)
    return {"torch": lambda: module(images).numpy(), "inductor": lambda: compiled(images).numpy()}


def least(call, budget):
    """Seconds of the shortest run, for so many seconds and five runs at least."""
    found, until = [], time.perf_counter() + budget
    while len(found) < 5 or time.perf_counter() < until:
        begin = time.perf_counter()
        call()
        found.append(time.perf_counter() - begin)
    return min(found)


def measure(shape, depths, budget=0.3):
    """name -> milliseconds a block at each depth, None where it could not be computed."""
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    found = {}
    for at, depth in enumerate(depths):
        parameters = make_parameters(shape[1], depth)
        calls = {
            name: call for make in (stacks, layers, torch_calls) for name, call in make(x, parameters, depth).items()
        }
        want = calls["layer by layer"]().copy()
        for name, call in calls.items():
            try:
                got = call()
            except Exception as error:  # inductor needs a C++ compiler
                print(f"{name}, {depth} blocks: left out, {type(error).__name__}")
                continue
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * float(want.max()), err_msg=name)
            found.setdefault(name, [None] * len(depths))[at] = 1e3 * least(call, budget) / depth
    return found


def table(found, depths):
    """The times as text."""
    rows = [f"{'ms a block':16}" + "".join(f"{depth:>9}" for depth in depths)]
    for name, times in found.items():
        rows.append(f"{name:16}" + "".join(f"{'-':>9}" if t is None else f"{t:9.4f}" for t in times))
    return "\n".join(rows)


def draw(found, depths, path):
    """The times as curves."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for name, times in found.items():
        axes.plot(depths, [np.nan if t is None else t for t in times], "o-", label=name)
    axes.set(xlabel="blocks of <max-pooling 3x3, batch norm, ReLU>", ylabel="ms a block", yscale="log")
    axes.grid(True, which="both", alpha=0.2)
    axes.legend()
    figure.savefig(path)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--depths", default="1,2,5,10,20,40")
    parser.add_argument("--images", default="4x64x56x56")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--plot", metavar="FILE")
    given = parser.parse_args(argv)
    depths, shape = [int(word) for word in given.depths.split(",")], tuple(map(int, given.images.split("x")))
    try:
        import torch
    except ImportError:
        print("torch is not installed")
    else:
        torch.set_num_threads(given.threads)
    with numbaprims.config(threads=given.threads):
        found = measure(shape, depths)
    print(f"blocks of <max-pool 3x3, batch norm, ReLU>, {given.images}, {given.threads} thread(s)")
    print(table(found, depths))
    if given.plot:
        try:
            draw(found, depths, given.plot)
        except ImportError:
            print("matplotlib is not installed: no picture")
    return found


if __name__ == "__main__":
    main()
