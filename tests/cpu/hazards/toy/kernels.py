"""Factories of kernels that are compiled through the kernel cache, and scripts over them."""

import json
import os
import sys
import warnings

import numba
from numba import types
from numba.core.ccallback import CFunc

from numbaprims import kernel_cache
from toy.helpers import finish

# A constant that depends on the machine, as a vector width does.
WIDTH = int(os.environ.get("TOY_WIDTH", "1"))


def _named(function, name, *spec):
    function.__name__ = function.__qualname__ = "_".join(map(str, (name, *spec)))
    return function


def make_pointer(scale):
    """A C function, called by pointer: x -> x * scale."""

    def times(x):
        return finish(x * scale) * WIDTH

    _named(times, "times", scale)
    compiled = CFunc(times, ((types.int64,), types.int64), {}, {"error_model": "numpy"})
    compiled._cache = kernel_cache.KernelCache(times, "times", (scale,), {"error_model": "numpy"})
    with kernel_cache.compile_lock(compiled._cache):
        compiled.compile()
    return compiled.ctypes


def make_linked(scale, spec=None):
    """A function that other compiled functions call: too large to be inlined, so that its symbol matters.

    All of them have one name, so that only the unique symbols keep them apart.
    """

    def chain(x):
        total = 0
        for i in range(x):
            total += i * scale + (i % 7) * (scale - 1) + (i // 3)
        for i in range(x):
            total ^= i * scale
        return finish(total)

    dispatcher = numba.njit(chain)
    dispatcher._cache = kernel_cache.KernelCache(chain, "chain", spec or (scale,), {})
    with kernel_cache.compile_lock(dispatcher._cache):
        dispatcher.compile("i8(i8)")
    return dispatcher


def expected_chain(scale, x):
    total = sum(i * scale + (i % 7) * (scale - 1) + (i // 3) for i in range(x))
    for i in range(x):
        total ^= i * scale
    return total


def linked_sums(first, second, x):
    """Two kernels, and the result of both from one function that links them."""
    a, b = make_linked(first), make_linked(second)

    @numba.njit
    def both(x):
        return a(x), b(x)

    return {"alone": [a(x), b(x)], "linked": list(both(x))}


def report(action, *arguments):
    """Run one function; print what it gave, what the cache counted and warned, as a line of JSON."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel_cache.install_unique_symbols()
        value = globals()[action](*arguments)
    messages = [str(w.message) for w in caught]
    print(json.dumps({"value": value, **kernel_cache.statistics(), "warnings": messages}))


def results(scales, x):
    return [make_pointer(scale)(x) for scale in scales]


if __name__ == "__main__":
    from toy import kernels  # so that the kernels' module is `toy.kernels`, not `__main__`

    action, *rest = sys.argv[1:]
    kernels.report(action, *map(json.loads, rest))
