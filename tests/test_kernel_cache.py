"""The kernel cache in one process: its key, its files, and what a damaged or unwritable disk does to it."""

import ctypes
import errno
import gc
import os
import pickle
import signal
import stat
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import numba
import pytest
from hypothesis import given, strategies as st
from kernel_disk import SIGNATURE, look_again, make
from numba.core.registry import cpu_target

from numbaprims import kernel_cache, kernel_files, settings, signals
from numbaprims.cpu.simd.arguments import store_word


# ---------------------------------------------------------------------------------- parts of Numba
def test_numba_still_has_the_parts_we_use():
    # If this fails after an update of Numba, adapt kernel_cache.py: until then nothing is kept on disk.
    assert kernel_cache._numba_parts().__class__.__name__ == "_Numba", kernel_cache._numba_parts()
    assert kernel_cache.unavailable() is None
    triple, name, features = kernel_cache.codegen_facts()
    assert triple and name and isinstance(features, str)
    assert kernel_cache.thread_mask()() == numba.get_num_threads()
    assert kernel_cache.thread_mask() is not numba.get_num_threads, "the fast way is gone"
    with kernel_cache.compiler_lock(), kernel_cache.compiler_lock():
        pass


def test_without_those_parts_kernels_still_compile(disk, monkeypatch):
    monkeypatch.setattr(kernel_cache, "_numba_parts", lambda: "this Numba lacks a part")
    kernel_cache.install_unique_symbols()
    assert disk.use(31) == "compiled" and disk.files == []
    assert len(disk.warned) == 1 and "this Numba lacks a part" in disk.warned[0]
    assert disk.use(32) == "compiled" and disk.warned == []
    assert kernel_cache.unavailable() == "this Numba lacks a part"
    assert kernel_cache.codegen_facts() == ("", "", "")


def test_symbols_are_unique_across_forks():
    from numba.core.bytecode import FunctionIdentity

    kernel_cache.install_unique_symbols()
    once = FunctionIdentity._unique_ids
    kernel_cache.install_unique_symbols()
    assert FunctionIdentity._unique_ids is once
    numbers = {next(once) for _ in range(1000)}
    assert len(numbers) == 1000 and max(numbers) > 2**60


def test_symbols_are_there_before_code_that_needs_them():
    # LLVM ends the process where one is missing; what nobody provides must bring Numba's whole start.
    steps = []

    class Runtime:
        @staticmethod
        def initialize(context):
            steps.append("runtime")

    class Context:
        @staticmethod
        def refresh():
            steps.append("refresh")

    known = {"always": [], "NRT_Free": ["runtime"], "dgemm": ["refresh"], "never": ["not at all"]}
    parts = kernel_cache._numba_parts()._replace(
        runtime=Runtime, address_of_symbol=lambda symbol: 1 if set(known[symbol]) <= set(steps) else None
    )
    for symbols, expected in (
        ((), []),
        (("always",), []),
        (("always", "NRT_Free"), ["runtime"]),
        (("dgemm",), ["runtime", "refresh"]),
        (("never",), ["runtime", "refresh"]),
    ):
        steps.clear()
        kernel_cache._provide(parts, Context, symbols)
        assert steps == expected


# ---------------------------------------------------------------------------------- hits
def test_kernel_is_kept_and_found(disk):
    assert disk.use() == "saves"
    assert disk.use() == "hits"
    assert disk.use(4) == "saves"
    assert disk.warned == []
    first = kernel_cache.entries()[0]
    assert (first.name, first.spec) == ("times", "(4,)")
    assert [entry.path for entry in kernel_cache.entries()] == sorted(
        map(str, disk.files), key=lambda path: -os.stat(path).st_mtime
    )
    assert kernel_cache.size() == sum(path.stat().st_size for path in disk.files) > 0
    assert kernel_cache.directory() == disk.folder
    if hasattr(os, "getuid"):
        assert stat.S_IMODE(disk.folder.stat().st_mode) == 0o700
        assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in disk.files)
    assert kernel_cache.clear() == 2 and disk.files == [] and kernel_cache.entries() == []
    assert disk.use() == "saves"


def test_dispatcher_finds_its_kernel_and_recompiles(disk):
    def twice(x):
        return 2 * x

    for expected in ("saves", "hits"):
        before = kernel_cache.statistics()[expected]
        dispatcher = numba.njit(twice)
        dispatcher._cache = kernel_cache.KernelCache(twice, "twice", (), {})
        assert dispatcher(21) == 42
        assert kernel_cache.statistics()[expected] == before + 1
        assert dispatcher.stats.cache_path == str(disk.folder)
    saves = kernel_cache.statistics()["saves"]
    dispatcher.recompile()  # and not load what it wants to replace
    assert dispatcher(21) == 42 and kernel_cache.statistics()["saves"] == saves + 1


def test_cache_switched_off(disk):
    settings.set_defaults(cache=False)
    assert disk.use() == "compiled" and disk.files == []
    assert "NUMBAPRIMS_CACHE=0" in kernel_cache.unavailable()


def test_shipped_kernels_come_first(disk, tmp_path):
    assert disk.use() == "saves"
    shipped = tmp_path / "shipped"
    disk.folder.rename(shipped)
    settings.set_defaults(shipped_cache=shipped)
    assert disk.use() == "hits"
    assert not disk.folder.exists(), "something was written"
    shipped_file = next(shipped.iterdir())
    shipped_file.write_bytes(b"not a kernel")
    assert disk.use() == "saves" and len(disk.warned) == 1
    assert disk.use() == "hits"
    settings.set_defaults(shipped_cache=tmp_path / "missing")
    assert disk.use() == "hits" and disk.warned == []


# ---------------------------------------------------------------------------------- damaged files
def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


DAMAGE = {
    "empty": lambda data: b"",
    "a byte": lambda data: data[:1],
    "cut in the head": lambda data: data[:30],
    "cut in the key": lambda data: data[:200],
    "last byte missing": lambda data: data[:-1],
    "half": lambda data: data[: len(data) // 2],
    "longer": lambda data: data + b"\0",
    "foreign": lambda data: b"\x7fELF" + os.urandom(5000),
    "text": lambda data: b"numbaprims kernel\nhello",
    "zeros": lambda data: bytes(len(data)),
    "flipped in the schema": lambda data: flip(data, 18),
    "flipped in the checksum": lambda data: flip(data, 30),
    "flipped in the key": lambda data: flip(data, 100),
    "flipped in the payload": lambda data: flip(data, len(data) - 100),
    "huge length": lambda data: data[:54] + b"\xff" * 12 + data[66:],
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_file_is_ignored_and_replaced(disk, damage):
    assert disk.use() == "saves"
    [path] = disk.files
    good = path.read_bytes()
    bad = DAMAGE[damage](good)
    assert bad != good
    path.write_bytes(bad)
    assert disk.use() == "saves"
    assert len(disk.warned) == 1 and path.name in disk.warned[0]
    kernel_cache.entries(), kernel_cache.size()
    path.write_bytes(bad)
    assert disk.use() == "saves" and disk.warned == [], "each kind of damage is told once"
    assert disk.use() == "hits"


def test_file_of_another_kernel_is_ignored(disk):
    disk.use(3)
    [three] = disk.files
    disk.use(4)
    [four] = set(disk.files) - {three}
    four.write_bytes(three.read_bytes())
    assert disk.use(4) == "saves" and "holds another kernel" in disk.warned[0]


def test_whole_file_with_a_payload_that_means_nothing(disk):
    disk.use()
    [path] = disk.files
    key = make(3)._cache.key(SIGNATURE)
    names = b'["f", "g", ["no_such_symbol"], 3]\n\0\0\0'
    for payload in (b"", b"not JSON", b"{}", b"[1, 2, 3]\n", b"[" * 99_999, names, pickle.dumps(Bomb())):
        path.write_bytes(kernel_files.pack(key, payload))
        assert disk.use() == "saves"
        assert disk.use() == "hits"
    assert not Bomb.exploded, "a kernel's file is not unpickled, whatever is in it"


class Bomb:
    exploded = False

    def __reduce__(self):
        return (setattr, (Bomb, "exploded", True))


def test_nothing_is_unpickled_before_the_checksum_holds(disk):
    disk.use()
    [path] = disk.files
    data = path.read_bytes()
    payload = kernel_files.unpack(data, make(3)._cache.key(SIGNATURE))
    path.write_bytes(data[: -len(payload)] + pickle.dumps(Bomb()).ljust(len(payload), b"\0"))
    assert disk.use() == "saves" and not Bomb.exploded
    pickle.loads(pickle.dumps(Bomb()))
    assert Bomb.exploded, "the test's own bomb is a dud"


def test_directory_in_the_place_of_a_file(disk):
    disk.use()
    [path] = disk.files
    path.unlink()
    path.mkdir()
    assert disk.use() == "compiled" and len(disk.warned) >= 1
    assert disk.use() == "compiled" and disk.warned == []


@given(st.binary(max_size=40), st.binary(max_size=40), st.data())
def test_any_changed_byte_and_any_cut_is_seen(key, payload, data):
    whole = kernel_files.pack(key, payload)
    assert kernel_files.unpack(whole, key) == payload
    cut = data.draw(st.integers(0, len(whole) - 1))
    position, mask = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(1, 255))
    changed = whole[:position] + bytes([whole[position] ^ mask]) + whole[position + 1 :]
    for bad in (whole[:cut], changed, whole + b"x"):
        with pytest.raises(ValueError):
            kernel_files.unpack(bad, key)


# ---------------------------------------------------------------------------------- directories
def unusable_below(tmp_path: Path) -> dict[str, Path]:
    file = tmp_path / "file"
    file.write_text("in the way")
    return {"below a file": file / "cache", "below /proc": Path("/proc/numbaprims-cache"), "is a file": file}


@pytest.mark.parametrize("kind", ["below a file", "below /proc", "is a file"])
def test_directory_that_cannot_be_made(disk, tmp_path, kind):
    # Not by permissions: tests may run as root, which they don't stop.
    settings.set_defaults(cache_dir=unusable_below(tmp_path)[kind])
    assert disk.use() == "compiled"
    assert len(disk.warned) == 1 and "NUMBAPRIMS_CACHE_DIR" in disk.warned[0]
    assert disk.use(4) == "compiled" and disk.warned == []
    assert kernel_cache.entries() == [] and kernel_cache.size() == 0 and kernel_cache.clear() == 0


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() == 0, reason="root may write everywhere")
def test_directory_without_write_permission(disk):
    disk.use()
    disk.folder.chmod(0o500)
    try:
        assert disk.use() == "hits" and disk.warned == []
        assert disk.use(4) == "compiled" and len(disk.warned) == 1
    finally:
        disk.folder.chmod(0o700)


def test_full_disk_leaves_nothing_behind(disk):
    # A limit on the size of files fails as a full disk does: in the middle of the write.
    resource = pytest.importorskip("resource")
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        result = disk.use()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert result == "compiled" and len(disk.warned) == 1
    assert list(disk.folder.iterdir()) == []
    assert disk.use() == "saves"


def test_relative_directory_is_not_made(disk, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(kernel_files, "_below", lambda chosen: "~/.cache/numbaprims/kernels")
    look_again()
    assert disk.use() == "compiled" and len(disk.warned) == 1
    assert list(tmp_path.iterdir()) == []


def test_errors_stay_warnings_under_warnings_as_errors(disk, tmp_path, capsys):
    settings.set_defaults(cache_dir=unusable_below(tmp_path)["below a file"])
    kernel = make(5)
    kernel.compile()  # this project's pytest turns warnings into errors
    assert kernel.ctypes(2) == 10
    assert "cannot be used" in capsys.readouterr().err


class Limit(Exception):
    """Of a caller, whose signal handler raises it whenever it is time."""


@pytest.mark.parametrize("error", [Limit("time is up"), TimeoutError("time is up"), KeyboardInterrupt()])
@pytest.mark.parametrize("name", ["read", "unpack", "file_name", "Lock", "prepare", "pack"])
def test_a_callers_time_limit_reaches_the_caller(disk, monkeypatch, name, error):
    def late(*given):
        raise error

    if name == "unpack":
        disk.use()
    with monkeypatch.context() as patch, pytest.raises(type(error)):
        patch.setattr(kernel_files, name, late)
        disk.use()
    assert disk.use() == ("hits" if name == "unpack" else "saves") and disk.warned == []


def test_an_interrupt_while_numba_starts_costs_one_call(tmp_path):
    code = """
        import signal
        import numpy as np, numbaprims
        from numba.core.typing.context import BaseContext

        def interrupted(context, rule, plain=BaseContext.insert_attributes):
            if type(rule).__module__.startswith("numbaprims."):  # the first of ours
                BaseContext.insert_attributes = plain
                signal.raise_signal(signal.SIGINT)
            plain(context, rule)

        signal.signal(signal.SIGINT, signal.default_int_handler)  # what the shell has in the background ignores it
        x = np.ones((8, 9), np.float32)
        BaseContext.insert_attributes = interrupted
        try:
            numbaprims.pad(x, [(1, 1), (1, 1)])
        except KeyboardInterrupt:
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            print(numbaprims.pad(x, [(1, 1), (1, 1)]).sum())
    """
    here = {**os.environ, "NUMBAPRIMS_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=here, capture_output=True, text=True)
    assert done.stdout.strip() == "72.0", done.stderr


def test_signals_wait():
    seen = []

    def handle(number, frame):
        seen.append(number)
        raise Limit

    numbers = [signal.SIGINT, signal.SIGTERM]
    before = [signal.signal(number, handle) for number in numbers]
    try:
        with pytest.raises(Limit), signals.wait(), signals.wait():
            for number in numbers:
                signal.raise_signal(number)
            assert seen == []
        assert sorted(seen) == sorted(numbers) and [signal.getsignal(number) for number in numbers] == [handle] * 2
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def test_a_disk_that_is_too_slow_costs_a_warning(disk, monkeypatch):
    def late(*given):
        raise TimeoutError(errno.ETIMEDOUT, "Connection timed out")

    monkeypatch.setattr(kernel_files, "read", late)
    assert disk.use() == "saves" and len(disk.warned) == 1 and "timed out" in disk.warned[0]


def test_lock_that_cannot_be_taken_costs_time_only(disk, monkeypatch):
    import filelock

    def refuse(*arguments, **keywords):
        raise OSError("this file system has no locks")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    assert disk.use() == "saves" and disk.use() == "hits" and disk.warned == []


def test_lock_of_another_process_is_waited_for(disk, monkeypatch):
    import filelock

    monkeypatch.setattr(kernel_cache, "LOCK_SECONDS", 0.2)
    disk.use()
    [path] = disk.files
    path.unlink()
    holder = filelock.FileLock(f"{path}.lock")
    with holder:
        started = time.monotonic()
        assert disk.use() == "saves"
        assert time.monotonic() - started > 0.2
    assert disk.use() == "hits"


# ---------------------------------------------------------------------------------- size
def test_oldest_kernels_go_first(disk):
    for scale in range(1, 7):
        disk.use(scale)
    sizes = [path.stat().st_size for path in disk.files]
    now = time.time()
    order = sorted(disk.files)
    for age, path in enumerate(order):
        os.utime(path, (now - 1000 * age, now - 1000 * age))
    (disk.folder / "notes.txt").write_text("not ours")
    stale = disk.folder / f"{order[0].name}.1-ab.tmp"
    fresh = disk.folder / f"{order[0].name}.2-cd.tmp"
    for path, age in ((stale, 7000), (fresh, 0)):
        path.write_bytes(b"left")
        os.utime(path, (now - age, now - age))
    kernel_files.trim(str(disk.folder), limit=sum(sizes))
    assert disk.files == order and not stale.exists() and fresh.exists()
    kernel_files.trim(str(disk.folder), limit=4 * max(sizes))
    assert disk.files == order[:3]
    kernel_files.trim(str(disk.folder), limit=0)
    assert disk.files == [] and (disk.folder / "notes.txt").exists()


def test_a_save_keeps_the_directory_below_its_limit(disk, monkeypatch):
    every = kernel_cache._SAVES_BETWEEN_TRIMS
    monkeypatch.setitem(kernel_cache._counts, "saves", 1)
    assert disk.use(3) == disk.use(4) == "saves"
    settings.set_defaults(cache_limit=1)
    monkeypatch.setitem(kernel_cache._counts, "saves", every)  # it looks at the size once in so many saves
    assert disk.use(5) == "saves" and disk.files == []


def test_the_collector_rests_while_a_kernel_is_compiled(disk, monkeypatch):
    from numbaprims.cpu.compiler import Compiler
    from numbaprims.cpu.jit import range_kernel

    @range_kernel("nothing", numba.int64, ())
    def nothing(args, worker, lo, hi):
        pass

    found, real = [], Compiler.compile_extra
    monkeypatch.setattr(Compiler, "compile_extra", lambda *given: found.append(gc.isenabled()) or real(*given))
    assert nothing.address
    assert found == [False] and gc.isenabled()


def test_numbas_engine_keeps_the_code_of_a_kernel_and_not_its_module(disk):
    from numbaprims.cpu.jit import range_kernel

    def multiplier(times):
        @range_kernel("multiplier", numba.int64, (times,))
        def multiply(args, worker, lo, hi):
            store_word(args, 0, times * hi)

        return multiply

    modules, found = cpu_target.target_context.codegen()._engine._ee._modules, ctypes.c_int64()
    kernels = [multiplier(times) for times in range(2, 5)]
    before = len(modules)
    addresses = [kernel.address for kernel in kernels]
    assert len(modules) == before
    for times, address in enumerate(addresses, 2):
        ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 4)(address)(ctypes.addressof(found), 0, 0, 10)
        assert found.value == 10 * times


def test_the_collector_rests_until_the_last_thread_has_compiled():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with kernel_cache.collector_paused():
            inside.set()
            leave.wait(10)

    thread = threading.Thread(target=other)
    with pytest.raises(KeyError), kernel_cache.collector_paused():
        thread.start()
        assert inside.wait(10)
        raise KeyError
    assert not gc.isenabled(), "the other thread still compiles"
    leave.set()
    thread.join()
    assert gc.isenabled()
    gc.disable()
    try:
        with kernel_cache.collector_paused():
            pass
        assert not gc.isenabled(), "it was off before"
    finally:
        gc.enable()
