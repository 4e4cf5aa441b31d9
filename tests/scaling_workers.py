"""What runs on the workers of tests/test_scaling.py: importable by name, so that children find it."""

import os
import pickle
import time


class Facts:
    """A plan that tells where it ran: (process, times this process has unpickled one, threads of a call, batch)."""

    arrivals = 0

    def __call__(self, batch):
        from numbaprims.cpu import threads

        time.sleep(0.01)  # so that every worker of a pool gets some
        return os.getpid(), Facts.arrivals, threads.count(), batch

    def __reduce__(self):
        return _arrive, ()


def _arrive():
    Facts.arrivals += 1
    return Facts()


class Algorithm:
    """A plan that tells what the settings force for gemm."""

    def __call__(self, batch):
        from numbaprims import settings

        return settings.current().algorithm_for("gemm"), settings.current().accuracy


class Fails:
    def __call__(self, batch):
        if batch == 2:
            raise ValueError("no batch 2")
        return batch


class Compiles:
    """A plan that runs another one, and tells what its process compiled: (result, statistics of the kernel cache)."""

    def __init__(self, plan):
        self.plan = plan

    def __call__(self, batch):
        from numbaprims import kernel_cache

        return self.plan(batch), kernel_cache.statistics()


def round_trip(plan):
    return pickle.loads(pickle.dumps(plan))
