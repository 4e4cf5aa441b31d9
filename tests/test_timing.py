"""The clock: its blocks in simulated time, and (slow) that interleaving leaves each rival its own speed."""

import pytest

from numbaprims.tuning.timing import Ratio, Schedule, Timing, measure, measure_one

MS = 1e-3


class FakeClock:
    """Time passes only where a simulated call or a sleep lets it pass."""

    def __init__(self):
        self.time = 100.0
        self.sleeps = []

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.sleeps.append(seconds)
        self.time += seconds


class Runtime:
    """Simulated libraries: for `spin` seconds after a change of library, calls are `slowed` times slower."""

    def __init__(self, clock, spin=5 * MS, slowed=20.0):
        self.clock, self.spin, self.slowed = clock, spin, slowed
        self.last, self.spinning_until = None, 0.0
        self.order = []

    def call(self, name, seconds):
        def run():
            if self.last != name:
                if self.last:
                    self.spinning_until = self.clock.time + self.spin
                self.order.append(name)
                self.last = name
            self.clock.time += seconds * (self.slowed if self.clock.time < self.spinning_until else 1.0)

        return run


def test_blocks_outlast_the_spinning_workers_of_the_previous_library():
    clock = FakeClock()
    runtime = Runtime(clock)
    true = {"numpy": 165e-6, "torch": 300e-6, "ours": 40e-6}
    times = measure({name: runtime.call(name, s) for name, s in true.items()}, clock=clock)
    for name, seconds in true.items():
        assert times[name].seconds == pytest.approx(seconds, rel=1e-9)
        assert times[name].spread == pytest.approx(0, abs=1e-9)
    assert times.speedup("ours", over="numpy").value == pytest.approx(165 / 40, rel=1e-9)


def test_without_settling_the_simulated_disturbance_is_seen():
    """The simulation does disturb: the test above would notice blocks that keep their start."""
    clock = FakeClock()
    runtime = Runtime(clock)
    calls = {"numpy": runtime.call("numpy", 165e-6), "torch": runtime.call("torch", 300e-6)}
    times = measure(calls, Schedule(block=3 * MS, settle=0), clock=clock)
    assert times["numpy"].seconds > 10 * 165e-6


@pytest.mark.parametrize(("limit", "rounds"), [(None, 3), (25.0, 3), (9.0, 1)])
def test_warm_calls_of_seconds_are_called_as_seldom_as_possible(limit, rounds):
    """The first of them says how long it takes; a round that alone takes longer than the limit is the only one."""
    clock = FakeClock()
    runtime = Runtime(clock, spin=0)
    calls = {"ours": runtime.call("ours", 4.0), "rival": runtime.call("rival", 8.0), "probe": runtime.call("probe", MS)}
    times = measure(calls, Schedule(rounds=3, time_limit=limit), clock=clock, warm=True)
    assert times["ours"].blocks == (4.0,) * rounds and times["rival"].blocks == (8.0,) * rounds
    assert times["ours"].calls == rounds and runtime.order.count("ours") == rounds
    assert times["probe"].seconds == pytest.approx(MS) and len(times["probe"].blocks) == rounds
    assert times.speedup("ours", over="rival").value == 2.0


def test_every_round_begins_with_another_callable():
    clock = FakeClock()
    runtime = Runtime(clock)
    measure({name: runtime.call(name, MS) for name in "abc"}, Schedule(rounds=3), clock=clock)
    assert "".join(runtime.order) == "abc" + "abc" + "bca" + "cab", "first the calibration, then the rounds"


@pytest.mark.parametrize("seconds, expected", [(16 * MS, 2), (20 * MS, 2), (30 * MS, 1), (400 * MS, 1)])
def test_long_calls_are_not_thrown_away(seconds, expected):
    clock = FakeClock()
    timing = measure_one(lambda: clock.sleep(seconds), Schedule(rounds=3), clock=clock)
    assert timing.calls == 3 * expected
    assert timing.seconds == pytest.approx(seconds)
    assert clock.sleeps.count(6 * MS) == 3, "the other runtimes get their pause before each block"


def test_calls_just_below_a_block_give_one_sample_after_the_settling():
    clock = FakeClock()
    assert measure_one(lambda: clock.sleep(14 * MS), Schedule(rounds=3), clock=clock).calls == 3


def test_short_calls_are_timed_in_groups():
    clock = FakeClock()

    def call():
        clock.time += 0.5e-6

    timing = measure_one(call, Schedule(rounds=1, min_rounds=1), clock=clock)
    assert timing.seconds == pytest.approx(0.5e-6)
    assert timing.calls % 40 == 0, "20 us a sample is 40 calls of 0.5 us"


def test_a_short_call_that_was_interrupted_does_not_pass_for_a_long_one():
    clock, count = FakeClock(), 0

    def call():
        nonlocal count
        count += 1
        clock.sleep(0.05 if count == 2 else 0.001)

    timing = measure_one(call, Schedule(rounds=3), clock=clock)
    assert timing.seconds == pytest.approx(0.001) and timing.calls > 3 * 5


@pytest.mark.parametrize("limit, rounds", [(None, 9), (0.1, 3), (10.0, 9), (1.35, 4)])
def test_time_limit_ends_the_rounds_but_not_below_the_minimum(limit, rounds):
    """Calibration takes 0.6 s here and a round 0.156 s: a fifth round would end at 1.38 s."""
    clock = FakeClock()
    timing = measure_one(lambda: clock.sleep(0.15), Schedule(rounds=9, time_limit=limit), clock=clock)
    assert len(timing.blocks) == rounds


def test_ratios_are_paired_by_round():
    """A machine that slows down for some rounds slows both down: the ratio does not move."""
    clock = FakeClock()
    drift = iter([1.0] * 5 + [3.0] * 1000)

    class Drifting:
        load = 1.0

    def call(seconds, advance):
        def run():
            if advance:
                Drifting.load = next(drift)
            clock.time += seconds * Drifting.load

        return run

    calls = {"a": call(0.1, True), "b": call(0.2, False)}
    times = measure(calls, Schedule(rounds=8, min_rounds=8), clock=clock)
    assert times["a"].best < 0.11 and max(times["a"].blocks) > 0.29, "the drift fell inside the measurement"
    assert times.speedup("a", over="b").value == pytest.approx(2.0)


def test_statistics():
    timing = Timing((1.0, 2.0, 3.0, 4.0, 100.0), calls=5)
    assert timing.seconds == 3.0 and timing.best == 1.0
    assert timing.spread == pytest.approx((4.0 - 2.0) / 2 / 3.0)
    assert Ratio.of([2.0]) == Ratio(2.0, 2.0, 2.0)
    assert Timing((0.5,), calls=1).spread == 0


@pytest.mark.parametrize("bad", [dict(settle=15e-3), dict(settle=-1.0), dict(min_rounds=0), dict(rounds=2)])
def test_impossible_schedules_are_refused(bad):
    with pytest.raises(ValueError, match="settle|min_rounds"):
        Schedule(**bad)


def test_no_callables_are_refused():
    with pytest.raises(ValueError, match="callables"):
        measure({})


def test_the_clock_of_the_machine():
    """Real time, no threshold that a busy machine could break: ten times the work takes longer."""
    quick = Schedule(block=3 * MS, settle=MS, rounds=3)
    times = measure({"one": lambda: sum(range(500)), "ten": lambda: sum(range(5000))}, quick)
    assert 0 < times["one"].seconds < times["ten"].seconds
    assert times.speedup("one", over="ten").value > 1


@pytest.mark.slow
def test_rivals_interleaved_run_within_ten_percent_of_their_time_alone():
    """Six attempts. One counts where the time alone, before and after, agrees with itself within 5 %: the
    others measure somebody else's load. Without any that counts the test is skipped."""
    np = pytest.importorskip("numpy")
    torch = pytest.importorskip("torch")
    a = np.random.default_rng(0).standard_normal((256, 256), dtype=np.float32)
    out = np.empty_like(a)
    t, t_out = torch.from_numpy(a), torch.empty(256, 256)
    calls = {
        "numpy": lambda: np.matmul(a, a, out=out),
        "torch": lambda: torch.mm(t, t, out=t_out),
        "sum": lambda: np.sum(a),
    }
    off = {name: [] for name in calls}
    for _ in range(6):
        before = {name: measure_one(call).best for name, call in calls.items()}
        together = measure(calls)
        for name, call in calls.items():
            after = measure_one(call).best
            if abs(after / before[name] - 1) <= 0.05:
                off[name].append(together[name].best / min(before[name], after) - 1)
        if all(any(abs(value) <= 0.10 for value in values) for values in off.values()):
            return
    if not all(off.values()):
        pytest.skip(f"this machine is too busy to time anything alone: {off}")
    pytest.fail(f"relative distance from the time alone, each attempt: {off}")
