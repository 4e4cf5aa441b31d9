"""What stands behind calls inside `@njit`: tables of records, settings, threads, processes, the entry point."""

import ctypes
import hashlib
import inspect
import json
import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numba
import numpy as np
import pytest
from test_jitted import compiled, drawn, refuse_alike, same

import numbaprims
from numbaprims.cpu import call_sites
from numbaprims.cpu.simd import call_sites as simd_sites
from numbaprims.dispatch import call, registry
from numbaprims.jitted import sites

pytestmark = pytest.mark.cpu
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def records():
    """How many records there are."""
    call.forget()
    return lambda: sum(map(len, sites._sites.values()))


@pytest.fixture
def defaults():
    """`config.set` for the length of a test."""
    yield numbaprims.config.set
    numbaprims.config.set(algorithm="", device="auto", verbose=0)


def test_a_kind_of_arrays_is_looked_at_once(rng, records, monkeypatch):
    inside, outside = compiled("x, out", "nb.tanh(x, out=out)")
    memory, out = drawn(rng, 2000), np.zeros(2000, np.float32)
    for n in range(1, 700):  # the table grows five times
        same(inside(memory[:n], out[:n]), outside(memory[:n], out[:n].copy()))
    assert records() == 699
    monkeypatch.setattr(call_sites.Site, "miss", lambda *given: pytest.fail("a known kind was not found"))
    for n in range(1, 700):
        same(inside(memory[n : 2 * n], out[n : 2 * n]), outside(memory[n : 2 * n], out[:n].copy()))


def test_past_its_capacity_a_site_remembers_no_more(rng, records, monkeypatch):
    monkeypatch.setattr(call_sites, "CAPACITY", 8)
    inside, outside = compiled("a, x", "nb.gemv(a, x)")
    a = drawn(rng, 30, 30)
    for _ in range(2):
        for n in range(1, 31):
            same(inside(a[:n, :n], a[0, :n]), outside(a[:n, :n], a[0, :n]))
    assert records() == 8


def test_which_arrays_are_the_result_is_part_of_a_record(rng):
    inside, outside = compiled("a, b, c, out", "nb.gemm(a, b, c=c, beta=1.0, out=out)")
    a, b, c = (drawn(rng, 6, 6) for _ in range(3))
    for _ in range(2):
        for given in ((a, a, c), (a, b, c), (b, a, a), (a, b, None), (b, b, None)):
            results = []
            for function in (inside, outside):
                out = c.copy()
                results.append(function(given[0], given[1], out if given[2] is None else given[2], out))
            same(*results)


@pytest.mark.parametrize("stem", ["gemm", "gemv", "ger", "activation"])
def test_every_solver_gives_its_bits(rng, defaults, stem):
    a, b, x = drawn(rng, 50, 40), drawn(rng, 40, 35), drawn(rng, 40)
    functions = {
        "gemm": (compiled("a, b, x", "nb.gemm(a, b, bias=a[0, :35], activation='tanh')"), (a, b, x)),
        "gemv": (compiled("a, b, x", "nb.gemv(a, x)"), (a, b, x)),
        "ger": (compiled("a, b, x", "nb.ger(x, a[0], a=b[:, :1] * x)"), (a, b, x)),
        "activation": (compiled("a, b, x", "nb.gelu(a)"), (a, b, x)),
    }
    (inside, outside), arguments = functions[stem]
    seen = set()
    for solver in registry.solvers(stem, "cpu"):
        defaults(algorithm={stem: solver.name})
        try:
            want = outside(*arguments)
        except ValueError as refusal:
            with pytest.raises(ValueError) as got:
                inside(*arguments)
            assert str(got.value) == str(refusal)
        else:
            same(inside(*arguments), want)
            seen.add(solver.name)
    assert len(seen) > 1 and "naive" in seen


def test_settings_are_the_defaults_of_the_process(rng, defaults):
    a, x = drawn(rng, 8, 5000), drawn(rng, 5000)
    inside, outside = compiled("a, x", "nb.gemv(a, x)")
    first = inside(a, x)
    with numbaprims.config(algorithm="gemv:naive"):
        other = outside(a, x)
        assert (first != other).any()
        same(inside(a, x), first)  # an override of one context does not reach compiled code
    defaults(algorithm="gemv:naive")
    same(inside(a, x), other)
    defaults(algorithm="")
    same(inside(a, x), first)
    defaults(device="reference")
    same(inside(a, x), outside(a, x))


def test_new_times_make_a_new_choice(rng, records):
    inside, _ = compiled("x", "nb.relu(x)")
    inside(drawn(rng, 5))
    assert records() == 1
    call.forget()
    assert records() == 0
    inside(drawn(rng, 5))
    assert records() == 1


def test_the_first_call_of_a_kind_is_logged(rng, defaults, capfd):
    inside, _ = compiled("a, x", "nb.gemv(a, x)")
    defaults(verbose=1)
    for _ in range(3):
        inside(drawn(rng, 13, 5), drawn(rng, 5))
    assert capfd.readouterr().err.count("numbaprims bench gemv --shapes 13x5") == 1


@numba.njit(parallel=True)
def layers(x, weight, bias, lengths, out):
    for i in numba.prange(len(lengths)):
        k = lengths[i]
        numbaprims.linear(x[i, :, :k], weight[:, :k], bias, activation="tanh", out=out[i])


def test_threads_of_a_prange_meet_new_kinds_together(rng):
    lengths = np.arange(1, 65) % 23 + 1
    x, weight, bias = drawn(rng, 64, 5, 24), drawn(rng, 9, 24), drawn(rng, 9)
    out = np.full((64, 5, 9), np.nan, np.float32)
    layers(x, weight, bias, lengths, out)
    for i, k in enumerate(lengths):
        same(out[i], numbaprims.linear(x[i, :, :k], weight[:, :k], bias, activation="tanh"))


def test_an_exception_in_a_prange_is_written_down(rng, capfd):
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("one thread")
    x, weight = drawn(rng, 64, 5, 24), drawn(rng, 9, 24)
    with pytest.raises(SystemError):  # what Numba makes of an exception in the calling thread's part
        layers(x, weight, drawn(rng, 8), np.full(64, 3), np.zeros((64, 5, 9), np.float32))
    assert "in a thread of prange, where exceptions are lost: ValueError: bias" in capfd.readouterr().err


def test_a_try_in_compiled_code_catches(rng):
    @numba.njit
    def product(x, w):
        return numbaprims.gemm(x, w)

    @numba.njit
    def either(x, w):
        caught = 0.0
        for _ in range(3):
            try:
                total = (numbaprims.gemm(x, w)[0, 0] + product(x, w)[0, 0]) / 2
            except Exception:
                caught += 1
                total = np.float32(-1)
        return total, caught

    x, w = drawn(rng, 3, 2), drawn(rng, 3, 3)
    for _ in range(2):
        assert either(w, w) == (numbaprims.gemm(w, w)[0, 0], 0)
        assert either(x, w) == (-1, 3)
        refuse_alike(product, numbaprims.gemm, x, w)
        refuse_alike(product, numbaprims.gemm, x[:, :1], w)  # the error of this call, and not of one before


def test_python_threads_without_the_gil(rng, records):
    inside, outside = compiled("a, x", "nb.gemv(a, x)", nogil=True)
    a = drawn(rng, 64, 64)

    def work(start):
        for n in [*range(start, 65), *range(1, start)]:
            same(inside(a[:n], a[0]), outside(a[:n], a[0]))

    inside(a, a[0])
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, (1, 20, 40, 60)))
    assert records() == 64


def run(code, folder, **environment):
    """Another interpreter that finds the same package."""
    path = os.pathsep.join([str(folder), str(ROOT)])
    env = dict(os.environ, PYTHONPATH=path, **environment)
    done = subprocess.run([sys.executable, "-c", code], env=env, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


USER = """
import numba, numpy as np, numbaprims
{init}
@numba.njit(cache=True)
def layer(x, w): return numbaprims.linear(x, w, activation="tanh")
@numba.njit(cache=True, parallel=True)
def layers(x, w):
    out = np.empty((len(x), x.shape[1], len(w)), x.dtype)
    for i in numba.prange(len(x)): numbaprims.linear(x[i], w, out=out[i])
    return out
def work():
    x, w = np.linspace(-1, 1, 90, dtype=np.float32).reshape(3, 5, 6), np.ones((4, 6), np.float32)
    assert (layer(x[0], w) == numbaprims.linear(x[0], w, activation="tanh")).all()
    assert (layers(x, w)[2] == numbaprims.linear(x[2], w)).all()
    return sum(layer.stats.cache_hits.values()), sum(layers.stats.cache_hits.values())
"""


def test_numba_keeps_a_users_function(tmp_path):
    """cache=True, across processes: no address of one is in the code that the next one loads."""
    (tmp_path / "user.py").write_text(USER.format(init="import numbaprims.jitted; numbaprims.jitted.init()"))
    assert [run("import user; print(user.work())", tmp_path).strip() for _ in range(2)] == ["(0, 0)", "(1, 1)"]


def test_numba_calls_the_entry_point(tmp_path):
    """As installed: Numba finds `init` by the package's metadata, whatever is imported first."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["numba_extensions"]
    info = tmp_path / "stand_in-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[numba_extensions]\ninit = {declared['init']}\n")
    (tmp_path / "user.py").write_text(USER.format(init=""))
    for first in ("", "from numbaprims import linear; ", "import numba; "):
        assert run(f"{first}import user; print(user.work()[0] < 2)", tmp_path).strip() == "True"


def test_init_is_light(tmp_path):
    code = (
        "import sys, time, json, numpy, numba, numba.extending; before = set(sys.modules); t = time.perf_counter()\n"
        "import numbaprims.jitted; numbaprims.jitted.init(); t = time.perf_counter() - t\n"
        "print(json.dumps([sorted(set(sys.modules) - before), t]))"
    )
    loaded, seconds = min((json.loads(run(code, tmp_path)) for _ in range(3)), key=lambda found: found[1])
    ours = [name for name in loaded if name.startswith("numbaprims")]
    assert ours == ["numbaprims", "numbaprims.jitted", "numbaprims.stems"] and seconds < 0.02


def test_a_forked_child_goes_on(tmp_path):
    code = (
        "import os, numba, numpy as np, numbaprims, numbaprims.jitted; numbaprims.jitted.init()\n"
        "f = numba.njit(lambda x: numbaprims.relu(x)); x = np.arange(9.0); f(x)\n"
        "child = os.fork()\n"
        "if child == 0: os._exit(0 if (f(x) == x).all() and (f(x[:3]) == x[:3]).all() else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    assert run(code, tmp_path).strip() == "0"


def test_other_compilers_of_numba(rng):
    weight, x = drawn(rng, 3, 5), drawn(rng, 7, 5)

    @numba.guvectorize(["void(float32[:, :], float32[:], float32[:])"], "(m, n), (n) -> (m)", target="parallel")
    def product(weight, x, out):
        numbaprims.gemv(weight, x, out=out)

    same(product(weight, x), np.stack([numbaprims.gemv(weight, row) for row in x]))

    @numba.cfunc("void(CPointer(float32), CPointer(float32), intp)")
    def tanh(x, out, n):
        numbaprims.tanh(numba.carray(x, (n,)), out=numba.carray(out, (n,)))

    out, pointer = np.zeros(5, np.float32), ctypes.POINTER(ctypes.c_float)
    tanh.ctypes(x.ctypes.data_as(pointer), out.ctypes.data_as(pointer), 5)
    same(out, numbaprims.tanh(x[0]))


def test_nothing_leaks(rng):
    @numba.njit
    def again(x, weight, n):
        for _ in range(n):
            y = numbaprims.linear(x, weight)
        return y

    x, weight = drawn(rng, 8, 30), drawn(rng, 30, 30)
    again(x, weight, 3)
    nrt = numba.core.runtime._nrt_python
    nrt.memsys_enable_stats()
    try:
        before = numba.core.runtime.rtsys.get_allocation_stats()
        again(x, weight, 1000)  # gives an array, which is freed at once
        after = numba.core.runtime.rtsys.get_allocation_stats()
    finally:
        nrt.memsys_disable_stats()
    assert after.alloc - before.alloc == after.free - before.free >= 1000


def test_words_of_a_block_belong_to_a_version():
    """Code that Numba's cache holds writes blocks as they were: a change of them needs a new VERSION in sites.py."""
    source = inspect.getsource(simd_sites._block) + repr(
        [getattr(simd_sites, name) for name in ("STATUS", "KEYS", "FLOATS_AT", "ARRAYS_AT", "KEY_AT", "SITE_ENTRY")]
    )
    digest = hashlib.sha256("".join(source.split()).encode()).hexdigest()[:12]
    assert {digest: sites.VERSION} == {"0ea54130f767": 2}


def test_code_of_another_release_is_refused():
    with pytest.raises(RuntimeError, match="another release of numbaprims.*__pycache__"):
        sites.address_of(json.dumps([sites.VERSION - 1, "relu"]))
