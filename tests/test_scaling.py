"""Plans over batches: executors of every kind, dask arrays, CPUs for each worker, one kernel cache."""

import concurrent.futures
import multiprocessing
import pathlib
import re
import sys
import threading

import numpy as np
import pytest
from scaling_workers import Algorithm, Compiles, Facts, Fails, round_trip

import numbaprims
from numbaprims.cpu import threads
from numbaprims.dispatch import scaling

pytestmark = pytest.mark.cpu
PAGE = pathlib.Path(__file__).parent.parent / "docs" / "scaling-out.md"
START = [method for method in ("spawn", "fork") if method in multiprocessing.get_all_start_methods()]


def pool(method="spawn", workers=2):
    return concurrent.futures.ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context(method))


def gemm_plan(rng):
    weight = rng.standard_normal((40, 30), dtype=np.float32)
    return numbaprims.gemm.plan(weight, bias=np.ones(30, np.float32), activation="relu"), weight


def conv_plan(rng):
    weight = rng.standard_normal((6, 4, 3, 3), dtype=np.float32)
    return numbaprims.conv.plan((2, 4, 9, 8), weight, padding=1), weight


# ---------------------------------------------------------------- executors


@pytest.mark.parametrize("make", [gemm_plan, conv_plan])
def test_the_same_bits_in_order_everywhere(make, rng, cluster):
    plan, _ = make(rng)
    shape = (2, 4, 9, 8) if make is conv_plan else (50, 40)
    batches = [rng.standard_normal((shape[0] - i % 2, *shape[1:]), dtype=np.float32) for i in range(9)]
    expected = [plan(batch) for batch in batches]
    assert len({y.tobytes() for y in expected}) == 9
    executors = [None, concurrent.futures.ThreadPoolExecutor(3), *map(pool, START), cluster.get_executor()]
    for executor in executors:
        found = list(plan.map(iter(batches), executor))
        for mine, want in zip(found, expected, strict=True):
            assert mine.dtype == want.dtype and mine.shape == want.shape and mine.tobytes() == want.tobytes()
        if executor is not None:
            executor.shutdown()


def test_a_plan_goes_to_each_process_once():
    with pool() as executor:
        first = list(scaling.over_batches(Facts(), range(20), executor))
        again = list(scaling.over_batches(Facts(), range(20), executor))
    processes = {process for process, *_ in first}
    assert len(processes) == 2
    assert {arrivals for _, arrivals, *_ in first + again} == {1}
    assert [batch for *_, batch in first] == list(range(20))


def test_a_worker_that_got_no_plan_is_sent_one():
    # as if the pool had one worker: its first batch alone carries the plan
    with pool(workers=2) as executor:
        found = list(scaling.over_batches(Facts(), range(40), executor, workers=1))
    assert {arrivals for _, arrivals, *_ in found} == {1} and [batch for *_, batch in found] == list(range(40))
    assert len({process for process, *_ in found}) == 2


def test_batches_are_drawn_as_results_are_taken():
    drawn = []

    def batches():
        for number in range(100):
            drawn.append(number)
            yield np.full((1, 40), number, np.float32)

    plan, _ = gemm_plan(np.random.default_rng(0))
    with concurrent.futures.ThreadPoolExecutor(2) as executor:
        results = plan.map(batches(), executor)
        for _ in range(10):
            next(results)
        assert len(drawn) <= 10 + 4
        results.close()
    assert len(drawn) <= 10 + 4


def test_an_updated_plan_is_another_one(rng):
    plan, weight = gemm_plan(rng)
    x = rng.standard_normal((5, 40), dtype=np.float32)
    with pool(workers=1) as executor:
        (before,) = plan.map([x], executor)
        plan.update(-weight)
        (after,) = plan.map([x], executor)
    np.testing.assert_array_equal(after, plan(x))
    assert (before != after).any()


def test_errors_come_with_their_batch():
    plan, _ = gemm_plan(np.random.default_rng(0))
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        results = scaling.over_batches(Fails(), range(5), executor)
        assert [next(results), next(results)] == [0, 1]
        with pytest.raises(ValueError, match="no batch 2"):
            next(results)
        with pytest.raises(ValueError, match="a is a float32 array"):
            list(plan.map([np.ones((3, 3), np.float32)], executor))
    with pytest.raises(TypeError, match="executor is a int"):
        plan.map([], 4)
    with pytest.raises(ValueError, match="workers is 0"):
        plan.map([], None, workers=0)


def test_settings_of_the_caller_hold_on_workers():
    with numbaprims.config(algorithm="gemm:blocked", accuracy="high"):
        for executor in (concurrent.futures.ThreadPoolExecutor(1), pool(workers=1)):
            with executor:
                assert list(scaling.over_batches(Algorithm(), [0, 1], executor)) == [("blocked", "high")] * 2


def test_plans_pickle_apart(rng):
    for make in (gemm_plan, conv_plan):
        plan, weight = make(rng)
        copy = round_trip(plan)
        x = rng.standard_normal((2, 4, 9, 8) if make is conv_plan else (3, 40), dtype=np.float32)
        np.testing.assert_array_equal(copy(x), plan(x))
        copy.update(-weight)
        assert (copy(x) != plan(x)).any(), "a copy has weights of its own"


def test_tensors():
    torch = pytest.importorskip("torch")
    plan = numbaprims.gemm.plan(torch.eye(3), activation="relu")
    with pool(workers=1) as executor:
        found = list(plan.map([torch.ones(2, 3), -torch.ones(1, 3)], executor))
    assert [y.tolist() for y in found] == [[[1.0] * 3] * 2, [[0.0] * 3]]
    assert all(isinstance(y, torch.Tensor) for y in found)


# ---------------------------------------------------------------- threads


@pytest.mark.parametrize("method", START)
def test_worker_processes_share_the_cpus(method):
    # a fork of this process, whose OpenMP threads may have started, computes serially: what count() says is the bound
    share = max(1, threads.default_threads() // 2)
    with pool(method) as executor:
        found = list(scaling.over_batches(Facts(), range(10), executor))
        with numbaprims.config(threads=3):
            asked = list(scaling.over_batches(Facts(), range(10), executor))
    assert {count for _, _, count, _ in found} == {share}
    assert {count for _, _, count, _ in asked} == {3}, "a number that was asked for is kept"
    assert threads.default_threads() >= share and threads._workers == 1, "this process keeps its own"


def test_share_cpus_as_an_initializer():
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        2, mp_context=context, initializer=numbaprims.share_cpus, initargs=(2,)
    ) as executor:
        found = list(executor.map(Facts(), range(4)))
    assert {count for _, _, count, _ in found} == {max(1, threads.default_threads() // 2)}
    for bad, error in ((0, ValueError), (1.5, TypeError)):
        with pytest.raises(error, match="workers is"):
            numbaprims.share_cpus(bad)


def test_dask_workers_use_one_thread_each(cluster):
    # dask's nannies set OMP_NUM_THREADS=1 in the processes that they start
    found = list(scaling.over_batches(Facts(), range(12), cluster.get_executor()))
    assert {count for _, _, count, _ in found} == {1} and {arrivals for _, arrivals, *_ in found} == {1}


def test_python_threads_share_the_cpus(rng, monkeypatch):
    """Launches at one time never use more threads than there are CPUs, once each thread has had its first."""
    most = threads.default_threads()
    if most < 2:
        pytest.skip("one CPU: there is nothing to share")
    seen, begin = [], threading.Barrier(4)
    real = threads.enter

    def noted(workers):
        given = real(workers)
        # one of them may be launched by native code
        seen.append((len(threads._running) + bool(threads._shared[threads._NATIVE]), given))
        return given

    monkeypatch.setattr(threads, "enter", noted)
    a = rng.standard_normal((700, 700), dtype=np.float32)
    expected = numbaprims.gemm(a, a)
    wrong = []

    def work():
        begin.wait()
        wrong.extend(1 for _ in range(20) if numbaprims.gemm(a, a).tobytes() != expected.tobytes())

    workers = [threading.Thread(target=work) for _ in range(4)]
    [w.start() for w in workers]
    [w.join() for w in workers]
    assert not wrong and not threads._running
    alone = [given for running, given in seen if running == 1]
    together = [given for running, given in seen if running > most]
    assert alone[0] == most and together and set(together) == {1}


# ---------------------------------------------------------------- the kernel cache


def test_workers_share_the_kernel_cache(rng, tmp_path, monkeypatch):
    monkeypatch.setenv("NUMBAPRIMS_CACHE_DIR", str(tmp_path))
    plan, _ = gemm_plan(rng)
    batch = rng.standard_normal((50, 40), dtype=np.float32)
    found = []
    for _ in range(2):
        with pool(workers=1) as executor:
            found += scaling.over_batches(Compiles(plan), [batch], executor)
    (first, compiled), (second, loaded) = found
    assert compiled["saves"] > 0 and compiled["errors"] == 0
    assert (loaded["misses"], loaded["saves"]) == (0, 0), "the second worker compiles nothing"
    assert loaded["hits"] == compiled["saves"] + compiled["hits"]
    np.testing.assert_array_equal(first, second)


# ---------------------------------------------------------------- dask arrays


@pytest.mark.parametrize("scheduler", ["synchronous", "threads", "processes", "cluster"])
def test_dask_arrays(scheduler, rng, request):
    da = pytest.importorskip("dask.array", reason="needs dask: pip install 'dask[array]'")
    if scheduler == "cluster":
        request.getfixturevalue("cluster")
    how = {} if scheduler == "cluster" else {"scheduler": scheduler}
    plan, _ = conv_plan(rng)
    x = rng.standard_normal((7, 4, 9, 8), dtype=np.float32)
    expected = numbaprims.conv.plan(x.shape, plan._mine, padding=1)(x)
    lazy = plan.map(da.from_array(x, chunks=(3, -1, -1, -1)))
    assert lazy.chunks == ((3, 3, 1), (6,), (9,), (8,)) and lazy.dtype == np.float32
    np.testing.assert_allclose(lazy.compute(**how), expected, rtol=1e-4, atol=1e-4)
    plan, weight = gemm_plan(rng)
    a = rng.standard_normal((6, 5, 40), dtype=np.float32)
    lazy = plan.map(da.from_array(a, chunks=(2, 3, 40)))
    assert lazy.chunks == ((2, 2, 2), (3, 2), (30,))
    found = lazy.compute(**how)
    np.testing.assert_allclose(found, np.maximum(a @ weight + 1, 0), rtol=1e-4, atol=1e-4)
    blocks = da.from_array(a, chunks=(2, 3, 40))
    plain = da.map_blocks(plan, blocks, dtype=np.float32, chunks=(*blocks.chunks[:2], (30,)))
    np.testing.assert_array_equal(plain.compute(**how), found)


def test_dask_arrays_that_are_cut_elsewhere(rng):
    da = pytest.importorskip("dask.array", reason="needs dask: pip install 'dask[array]'")
    plan, _ = conv_plan(rng)
    x = da.zeros((4, 4, 9, 8), chunks=(2, 4, 9, 4), dtype=np.float32)
    with pytest.raises(ValueError, match=r"2 chunks along dimension 3; .*x.rechunk\(\{3: -1\}\)"):
        plan.map(x)
    assert plan.map(x.rechunk({3: -1})).shape == (4, 6, 9, 8)
    with pytest.raises(TypeError, match="leave executor away"), concurrent.futures.ThreadPoolExecutor(1) as executor:
        plan.map(x, executor)


def test_the_pages_examples_run(tmp_path):
    pytest.importorskip("dask.array", reason="needs dask: pip install 'dask[array]'")
    pytest.importorskip("distributed", reason="needs dask.distributed: pip install distributed")
    import subprocess

    code = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(code) == 3
    (tmp_path / "page.py").write_text("\n".join(code))
    # a script of its own: its processes start by importing it
    subprocess.run([sys.executable, str(tmp_path / "page.py")], check=True, cwd=tmp_path, timeout=200)
