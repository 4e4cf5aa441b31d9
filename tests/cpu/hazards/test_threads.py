"""Threads, forks and threading layers: results stay right and no process ends."""

import os
import shutil
import sys

import pytest

LAYERS = ("omp", "workqueue")
HAS_FORK = hasattr(os, "fork")

# Four threads, whatever the machine has.
FOUR = {"NUMBA_NUM_THREADS": "4", "NUMBAPRIMS_THREADS": "4"}


def on(layer: str) -> dict[str, str]:
    return {"NUMBA_THREADING_LAYER": layer, **FOUR}


@pytest.fixture(params=LAYERS)
def layer(request):
    if request.param == "omp":
        pytest.importorskip("numba.np.ufunc.omppool", reason="this machine has no OpenMP library")
    return request.param


def test_eight_python_threads_at_once(run_script, layer):
    # Without the lock of a region, workqueue ends the process: "Concurrent access has been detected".
    found = run_script(
        """
        import json, threading
        from toy import ranges
        from numbaprims.cpu import threads
        check = ranges.Check()
        start = threading.Barrier(8)
        def work():
            start.wait()
            check(150)
        workers = [threading.Thread(target=work) for _ in range(8)]
        [w.start() for w in workers]
        [w.join() for w in workers]
        print(json.dumps([check.wrong, check.calls >= 150, threads.layer()[0], threads.count()]))
        """,
        **on(layer),
    )
    assert found == [0, True, layer, 4]


def test_first_call_from_eight_python_threads(run_script, layer):
    found = run_script(
        """
        import json, threading
        from toy import ranges
        from numbaprims.cpu import threads
        start = threading.Barrier(8)
        wrong = []
        def work():
            start.wait()
            wrong.append(ranges.Check()(20).wrong)
        workers = [threading.Thread(target=work) for _ in range(8)]
        [w.start() for w in workers]
        [w.join() for w in workers]
        print(json.dumps([wrong, threads.layer()[0]]))
        """,
        **on(layer),
    )
    assert found == [[0] * 8, layer]


@pytest.mark.parametrize(
    "environment",
    [
        {"OMP_THREAD_LIMIT": "1"},  # one thread for the four that a region asks for
        {"OMP_THREAD_LIMIT": "3"},
        {"NUMBA_NUM_THREADS": "32", "NUMBAPRIMS_THREADS": "32"},  # more than cores, and than queues
        {"NUMBA_NUM_THREADS": "32", "NUMBAPRIMS_THREADS": "32", "OMP_WAIT_POLICY": "passive"},
        {"NUMBA_THREADING_LAYER": "workqueue", "NUMBA_NUM_THREADS": "32", "NUMBAPRIMS_THREADS": "32"},
    ],
    ids=lambda environment: ",".join(f"{name}={value}" for name, value in environment.items()),
)
def test_a_region_with_other_threads_than_it_asked_for(run_script, layer, environment):
    """A worker that never comes, or comes when all is done, is not waited for."""
    found = run_script(
        """
        import json
        from toy import ranges
        print(json.dumps([ranges.Check(rounds)(40).wrong for rounds in (0, 20, 500)]))
        """,
        **on(layer) | environment,
    )
    assert found == [0, 0, 0]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinity on this system")
def test_a_region_on_one_core(run_script, layer):
    found = run_script(
        """
        import json, os
        from toy import ranges
        check = ranges.Check()
        check(3)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps(check(40).wrong))
        """,
        **on(layer),
    )
    assert found == 0


FORK = """
    import json, os, sys, threading, time
    from toy import ranges
    from numbaprims.cpu import threads

    def child_of(work):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.write(write, json.dumps(work()).encode())
            os._exit(0)
        os.close(write)
        text = b"".join(iter(lambda: os.read(read, 4096), b""))
        os.close(read)
        status = os.waitpid(pid, 0)[1]
        return json.loads(text) if status == 0 else f"ended with {status}"

    def state():
        return [check(5).wrong, threads.parallel_allowed()]

    check = ranges.Check()
"""


@pytest.mark.skipif(not HAS_FORK, reason="no fork on this system")
def test_forked_child_after_a_parallel_call(run_script, layer):
    # GNU OpenMP ends the child at its first parallel region; torch's DataLoader forks.
    found = run_script(
        FORK
        + """
    check(3)
    def grandchild():
        return [state(), child_of(state)]
    print(json.dumps([child_of(state), child_of(grandchild), state()]))
    """,
        **on(layer),
    )
    alone = [0, layer != "omp"]
    assert found == [alone, [alone, alone], [0, True]]


@pytest.mark.skipif(not HAS_FORK, reason="no fork on this system")
def test_forked_child_before_the_first_parallel_call(run_script, layer):
    found = run_script(FORK + "\n    print(json.dumps([child_of(state), state(), child_of(state)]))", **on(layer))
    assert found == [[0, True], [0, True], [0, layer != "omp"]]


@pytest.mark.skipif(not HAS_FORK, reason="no fork on this system")
def test_forked_child_after_the_users_own_parallel_function(run_script, layer):
    found = run_script(
        FORK
        + """
    import numba
    @numba.njit("i8(i8)", parallel=True)
    def user(n):
        total = 0
        for i in numba.prange(n):
            total += i
        return total
    assert user(1000) == 499500
    print(json.dumps([child_of(state), state()]))
    """,
        **on(layer),
    )
    assert found == [[0, layer != "omp"], [0, True]]


@pytest.mark.skipif(not HAS_FORK, reason="no fork on this system")
def test_fork_while_other_threads_are_in_a_region(run_script, layer):
    found = run_script(
        FORK
        + """
    check = ranges.Check(2000)
    check()
    stop = False
    def busy():
        while not stop:
            check()
    workers = [threading.Thread(target=busy) for _ in range(2)]
    [w.start() for w in workers]
    children = []
    for _ in range(10):
        time.sleep(0.002)
        children.append(child_of(lambda: check(2).wrong))
    stop = True
    [w.join() for w in workers]
    print(json.dumps([children, check.wrong]))
    """,
        **on(layer),
    )
    assert found == [[0] * 10, 0]


@pytest.mark.skipif(not HAS_FORK, reason="no fork on this system")
def test_forked_pool_of_processes(run_script, layer):
    found = run_script(
        """
        import json, multiprocessing
        from toy import ranges
        check = ranges.Check()
        check(3)
        def work(n):
            return check(n).wrong
        with multiprocessing.get_context("fork").Pool(2) as pool:
            print(json.dumps(pool.map(work, [1, 2, 3, 4], chunksize=1)))
        """,
        **on(layer),
    )
    assert found == [0, 0, 0, 0]


def test_thread_count_changes_at_run_time(run_script, layer):
    found = run_script(
        """
        import json, threading
        import numba
        from toy import ranges
        from numbaprims import config
        from numbaprims.cpu import threads
        counts, check = [], ranges.Check()
        def note():
            check(3)
            counts.append(threads.count())
        note()
        for n in (1, 2, 3, 8, 100):
            with config(threads=n):
                note()
        config.set(threads=5)
        note()
        numba.set_num_threads(3)  # the user's own limit, for this thread
        note()
        with config(threads=2):
            note()
        worker = threading.Thread(target=note)
        worker.start(); worker.join()
        numba.set_num_threads(8)
        note()
        config.set(threads="auto")
        note()
        print(json.dumps([counts, check.wrong, numba.get_num_threads(), threads.default_threads()]))
        """,
        NUMBA_THREADING_LAYER=layer,
        NUMBA_NUM_THREADS="8",
        NUMBAPRIMS_THREADS="4",
    )
    counts, wrong, left, default = found
    assert counts == [4, 1, 2, 3, 8, 8, 5, 3, 2, 5, 5, default]
    assert wrong == 0 and left == 8, "our calls changed the user's number of threads"


def test_users_limit_from_before_the_first_call(run_script):
    found = run_script(
        """
        import json, numba
        numba.set_num_threads(2)
        from toy import ranges
        from numbaprims.cpu import threads
        before = threads.count()
        print(json.dumps([before, ranges.Check()(2).wrong, threads.count()]))
        """,
        **FOUR,
    )
    assert found == [2, 0, 2]


LAYER = """
    import json, sys, numba
    {before}
    from numbaprims.cpu import threads
    name, why = threads.layer()
    assert numba.threading_layer() == name
    from toy import ranges
    print(json.dumps([name, why, ranges.Check()(2).wrong, list(numba.config.THREADING_LAYER_PRIORITY)]))
"""
WITHOUT_OMP = "sys.modules['numba.np.ufunc.omppool'] = None"


def test_omp_is_preferred(run_script):
    pytest.importorskip("numba.np.ufunc.omppool", reason="this machine has no OpenMP library")
    name, why, wrong, _ = run_script(LAYER.format(before=""), **FOUR)
    assert (name, wrong) == ("omp", 0) and "fastest" in why


@pytest.mark.skipif(sys.platform != "linux", reason="regions are begun by OpenMP's functions on Linux")
@pytest.mark.parametrize("torch_first", [True, False])
def test_regions_run_on_the_threads_of_torch(run_script, torch_first):
    """Two libraries' threads wait for regions on the same CPUs, 4 ms a region."""
    pytest.importorskip("numba.np.ufunc.omppool", reason="this machine has no OpenMP library")
    if torch_first:
        pytest.importorskip("torch")
    path, of_torch, wrong, same = run_script(
        f"""
        import ctypes, json, os, sys
        {"import torch" if torch_first else "sys.modules['torch'] = type(sys)('torch')"}
        from toy import ranges
        from numbaprims.cpu import threads
        check = ranges.Check()
        check(100)
        begin, number = threads._shared[threads.BEGIN], threads._shared[threads.NUMBER]
        def library(address):
            for line in open("/proc/self/maps"):
                low, high = (int(each, 16) for each in line.split()[0].split("-"))
                if low <= address < high:
                    return line.split()[-1]
        lib = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so") if {torch_first} else ""
        wanted = ctypes.cast(ctypes.CDLL(lib).GOMP_parallel, ctypes.c_void_p).value if lib else 0
        print(json.dumps([library(begin), wanted == begin, check.wrong, library(begin) == library(number)]))
        """,
        **on("omp"),
    )
    assert wrong == 0 and same and of_torch == torch_first and "omp" in os.path.basename(path)


def test_workqueue_where_nothing_else_is(run_script):
    name, why, wrong, _ = run_script(LAYER.format(before=WITHOUT_OMP), **FOUR)
    assert wrong == 0
    assert (name == "workqueue" and "libgomp" in why) or name == "tbb"


@pytest.mark.parametrize(
    ("before", "variables", "expected"),
    [
        ("", {"NUMBA_THREADING_LAYER": "workqueue"}, "workqueue"),
        ("numba.config.THREADING_LAYER = 'workqueue'", {}, "workqueue"),
        ("", {"NUMBA_THREADING_LAYER_PRIORITY": "workqueue tbb omp"}, "workqueue"),
        ("numba.config.THREADING_LAYER_PRIORITY = ['workqueue', 'omp', 'tbb']", {}, "workqueue"),
        ("numba.config.THREADING_LAYER = 'workqueue'; numba.get_num_threads()", {}, "workqueue"),
        ("numba.config.THREADING_LAYER = 'forksafe'", {}, "workqueue"),
    ],
    ids=["variable", "config", "priority variable", "priority", "started before", "forksafe"],
)
def test_users_choice_of_a_layer_stands(run_script, before, variables, expected):
    name, why, wrong, priority = run_script(LAYER.format(before=before), **variables, **FOUR)
    assert (name, wrong) == (expected, 0) and "umba" in why
    if "PRIORITY" in before + str(variables):
        assert priority[0] == "workqueue"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc/self/maps")
def test_tbb_of_a_virtual_environment_is_loaded(run_script, tmp_path):
    # `pip install tbb` puts the library where the loader does not look. Any library will do to see it loaded.
    import _ctypes

    (tmp_path / "lib").mkdir()
    shutil.copy(_ctypes.__file__, tmp_path / "lib" / "libtbb.so.12")
    found = run_script(
        f"""
        import json, sys
        {WITHOUT_OMP}
        sys.prefix = {str(tmp_path)!r}
        from numbaprims.cpu import threads
        name = threads.layer()[0]
        print(json.dumps([name, {str(tmp_path)!r} in open("/proc/self/maps").read()]))
        """,
        **FOUR,
    )
    assert found == ["workqueue", True], "a library that is not TBB must not be taken for it"


def test_kernel_asked_for_while_a_users_function_compiles(run_script):
    # A lock of ours around the compilation would be taken in the other order by the other thread.
    found = run_script("""
        import json, threading, time
        import numba
        from numba.extending import overload
        from toy import ranges
        kernel, compiling = ranges.make_mix(), threading.Event()
        def ask(x):
            return None
        @overload(ask)
        def ask_overload(x):
            compiling.set()
            time.sleep(0.2)
            address = kernel.address
            return lambda x: x + 1
        def other():
            compiling.wait()
            kernel.address
        worker = threading.Thread(target=other)
        worker.start()
        @numba.njit
        def user(x):
            return ask(x)
        print(json.dumps(user(1)))
        worker.join()
    """)
    assert found == 2


def test_a_region_leaves_the_users_number_of_threads(run_script):
    # Our regions wake only the threads that they use, by the same limit that numba.set_num_threads sets.
    found = run_script(
        """
        import json, numba
        from numbaprims import config
        from toy import ranges
        seen = []
        check = ranges.Check()
        @numba.njit("i8(i8)", parallel=True)
        def threads_of_a_region(n):
            used = 0
            for i in numba.prange(n):
                used = max(used, numba.get_num_threads())
            return used
        for n in (2, 3):
            with config(threads=n):
                check()
            seen.append(threads_of_a_region(64))
        print(json.dumps([seen, check.wrong]))
        """,
        NUMBA_NUM_THREADS="8",
    )
    assert found == [[8, 8], 0]


def test_a_number_that_came_first_is_asked_natively(run_script):
    """What a user has set before our first call: Numba's Python was asked for it at each."""
    found = run_script(
        """
        import json, numba, numpy, numbaprims
        from numbaprims.cpu import threads
        numba.set_num_threads(1)
        total = float(numbaprims.cast(numpy.ones(1 << 20, numpy.float32), "float64").sum())
        print(json.dumps([total, threads.count(), threads._mask is threads._mask_before]))
        """,
        **FOUR,
    )
    assert found == [float(1 << 20), 1, False]
