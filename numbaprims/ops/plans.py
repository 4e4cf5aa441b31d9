"""What all plans have in common: they map over batches."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

# the arguments of a public function and its result; those of its `plan`
P = ParamSpec("P")
R = TypeVar("R")
Q = ParamSpec("Q")
T = TypeVar("T")


class Planned(Generic[P, R, Q, T]):
    """What type checkers see in a function that has a ``plan``; nothing is an instance of it."""

    __name__: str
    plan: Callable[Q, T]

    if TYPE_CHECKING:

        def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


def with_plan(plan: Callable[Q, T]) -> Callable[[Callable[P, R]], Planned[P, R, Q, T]]:
    """Decorate a public function: ``function.plan`` prepares it."""

    def decorate(function: Callable[P, R]) -> Planned[P, R, Q, T]:
        planned = cast(Planned[P, R, Q, T], function)
        planned.plan = plan
        return planned

    return decorate


class Plan:
    """A call whose weights were prepared once: ``plan(x)``."""

    def leading(self, ndim: int) -> int:
        """How many of the first dimensions of an input of `ndim` dimensions may be cut into batches."""
        return 1

    def map(
        self, batches: Iterable[Any], executor: concurrent.futures.Executor | None = None, *, workers: int | None = None
    ) -> Any:
        """Call the plan on each batch, here or on the workers of an executor.

        Args:
            batches: inputs of the plan, any iterable; it is drawn from as results are taken, two batches a worker
                ahead. Or a dask array, cut along its first dimension (a gemm plan: along all but the last).
            executor: any `concurrent.futures.Executor`: threads, processes (fork or spawn), or a cluster
                (``dask.distributed.Client(...).get_executor()``). None computes here, with all threads for each batch.
            workers: of the executor, where it does not say so itself.

        Returns:
            An iterator of the results, in the order of the batches; of a dask array, a dask array.

            Worker processes get the plan as it is now, once; they compile what no other process has left in the kernel
            cache, and each uses its part of the CPUs. The settings in force at the call hold on the workers too. The
            results have the same bits wherever they are computed on one kind of CPU.

        Raises:
            TypeError, ValueError: an executor that is none, a dask array that is cut along another dimension; and
                what the plan raises for a batch, when its result is taken.

        Example:
            >>> import numpy as np, numbaprims
            >>> plan = numbaprims.gemm.plan(np.eye(2, dtype=np.float32), activation="relu")
            >>> [y.tolist() for y in plan.map([np.float32([[1, -1]]), np.float32([[-2, 2]])])]
            [[[1.0, 0.0]], [[0.0, 2.0]]]
        """
        from numbaprims.dispatch import scaling

        plan: Any = self
        if scaling.is_dask(batches):
            if executor is not None:
                raise TypeError("batches is a dask array, which dask's scheduler computes; leave executor away")
            dask_array: Any = batches
            return scaling.over_blocks(plan, dask_array, self.leading(dask_array.ndim))
        return scaling.over_batches(plan, batches, executor, workers)
