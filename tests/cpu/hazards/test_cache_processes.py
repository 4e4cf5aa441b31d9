"""Several processes at one kernel cache: no kernel is wrong, lost, or compiled twice."""

import os
import signal

import pytest

SCALES = list(range(1, 16))


def chain(scale: int, x: int) -> int:
    """What toy.kernels.make_linked computes."""
    total = sum(i * scale + (i % 7) * (scale - 1) + (i // 3) for i in range(x))
    for i in range(x):
        total ^= i * scale
    return total


def test_six_processes_compile_fifteen_kernels_each(toy):
    # With Numba's own cache 2 of these 90 kernels were another's and 7 were lost: its index has no lock.
    mine = {n: [1000 * n + s for s in SCALES] for n in range(6)}
    children = {n: toy.start("results", scales, 10) for n, scales in mine.items()}
    for n, child in children.items():
        found = child.result()
        assert found["value"] == [10 * s for s in mine[n]]
        assert (found["saves"], found["errors"]) == (15, 0)
    again = toy.run("results", sum(mine.values(), []), 7)
    assert again["value"] == [7 * s for scales in mine.values() for s in scales]
    assert (again["hits"], again["misses"], again["errors"]) == (90, 0, 0)


def test_six_processes_share_fifteen_kernels(toy):
    children = [toy.start("results", SCALES, 10) for _ in range(6)]
    found = [child.result() for child in children]
    assert all(one["value"] == [10 * s for s in SCALES] for one in found)
    assert sum(one["saves"] for one in found) == 15, "a kernel was compiled twice"
    assert sum(one["hits"] for one in found) == 75
    left = [path.name for path in (toy.cache / "kernels").iterdir() if path.suffix != ".npk"]
    assert not left, "locks and temporary files stay behind"


def test_fresh_and_cached_kernels_link_together(toy):
    # Symbols that carry a counter of the process repeat: a cached kernel and a fresh one get the same name.
    toy.run("linked_sums", 2, 5, 10)
    toy.run("linked_sums", 3, 7, 10)
    for first, second, hits in ((2, 3, 2), (3, 2, 2), (2, 4, 1), (6, 5, 1)):
        found = toy.run("linked_sums", first, second, 10)
        assert found["value"]["alone"] == [chain(first, 10), chain(second, 10)]
        assert found["value"]["linked"] == [chain(first, 10), chain(second, 10)]
        assert (found["hits"], found["saves"]) == (hits, 2 - hits)


def test_two_processes_clear_while_another_loads(toy, tmp_path):
    """As long as it takes to clear some kernels, however busy the machine is."""
    clear = """
        import json, time
        from numbaprims import kernel_cache
        removed = 0
        until = time.monotonic() + 60
        while removed < 3 and time.monotonic() < until:
            removed += kernel_cache.clear()
            kernel_cache.size(), kernel_cache.entries()
            time.sleep(0.005)
        print(json.dumps(removed))
    """
    load = f"""
        import json, os, warnings
        warnings.simplefilter("error")
        from toy import kernels
        from numbaprims import kernel_cache
        wrong = count = 0
        while not os.path.exists({str(tmp_path / "cleared")!r}):
            count += 1
            wrong += kernels.make_pointer(count % 3 + 1)(5) != 5 * (count % 3 + 1)
        print(json.dumps([wrong, kernel_cache.statistics()["errors"]]))
    """
    loading = toy.start_script(load)
    clearing = [toy.start_script(clear) for _ in range(2)]
    removed = [child.result() for child in clearing]
    (tmp_path / "cleared").touch()
    assert loading.result() == [0, 0]
    assert sum(removed) >= 3, "nothing was there to clear"


HOLD = """
    import json, sys, time
    from toy import kernels
    from numbaprims import kernel_cache

    def save_never(self, sig, cres):
        print("compiling", flush=True)
        time.sleep(1000)

    kernel_cache.KernelCache.save_overload = save_never
    kernels.make_pointer(3)
"""


@pytest.mark.parametrize("sent", ["SIGKILL", "SIGSTOP"])
def test_process_that_dies_or_hangs_while_it_compiles(toy, sent):
    holder = toy.start_script(HOLD)
    try:
        assert holder.process.stdout.readline() == "compiling\n"
        os.kill(holder.process.pid, getattr(signal, sent))
        wait = 60.0 if sent == "SIGKILL" else 0.3  # the lock of a dead process is free at once
        found = toy.script(f"""
            import json
            from numbaprims import kernel_cache
            kernel_cache.LOCK_SECONDS = {wait}
            from toy import kernels
            value = kernels.make_pointer(3)(5)
            print(json.dumps([value, kernel_cache.statistics()]))
        """)
        assert found == [15, {"hits": 0, "misses": 1, "saves": 1, "errors": 0}]
    finally:
        holder.process.kill()
        holder.process.communicate()
