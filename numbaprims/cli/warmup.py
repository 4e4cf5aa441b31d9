"""``numbaprims warmup``: compile kernels into the kernel cache, in as many processes as there are CPUs.

What is compiled is what calls compile: each problem's solver is chosen and bound as a call of it does.  By default the
problems are those of the benchmark's suites, forward and backward.
"""

import argparse
import dataclasses
import multiprocessing
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from time import perf_counter
from typing import Any

from numbaprims.cli import problems


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stems", nargs="*", metavar="stem", help=f"default all: {', '.join(problems.STEMS)}")
    parser.add_argument(
        "--suite", metavar="NAME", help="a suite of shapes: resnet50, gemm:square; alone or of the stems"
    )
    problems.add_arguments(parser)
    parser.add_argument("--jobs", type=problems.positive, help="processes; default one a CPU that may be used")


def run(arguments: argparse.Namespace) -> int:
    from tqdm.auto import tqdm

    from numbaprims import kernel_cache
    from numbaprims.cpu import threads

    jobs = arguments.jobs or threads.default_threads()
    began, failures, compiled = perf_counter(), [], 0
    # Compilation holds one lock for a whole process, so threads would not help; spawned and not forked,
    # because a child forked after an OpenMP region dies at its own first one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        try:
            posed = pool.map(pose, *zip(*_asked(arguments), strict=True))
            wanted = list(dict.fromkeys(problem for some in posed for problem in some))
        except (ValueError, TypeError) as error:
            print(f"numbaprims warmup: {error}", file=sys.stderr)
            return 2
        running: dict[Future[int], Any] = {pool.submit(compile_common): None}
        running |= {pool.submit(compile_problem, problem): problem for problem in wanted}
        for future in tqdm(as_completed(running), total=len(running), unit="problem", disable=None):
            failure, problem = future.exception(), running[future]
            if failure is None:
                compiled += future.result()
            else:
                what = "what every call takes" if problem is None else problem.bench_command()
                failures.append(f"{what}: {type(failure).__name__}: {failure}")
    for line in failures:
        print(line, file=sys.stderr)
    print(
        f"{len(running) - len(failures)} of {len(running)} ready in {perf_counter() - began:.1f} s, {compiled} kernels "
        f"compiled, {jobs} processes, in {kernel_cache.directory()}"
    )
    return 1 if failures else 0


def _asked(arguments: argparse.Namespace) -> Iterator[tuple[str, argparse.Namespace]]:
    """The stems, and the options that name their problems; ValueError for what does not exist."""
    for stem in arguments.stems:
        if stem not in problems.STEMS:
            raise ValueError(f"stem {stem!r} is not one of {', '.join(problems.STEMS)}")
    stems = arguments.stems or problems.STEMS
    suites: list[tuple[str, str | None]] = [(stem, arguments.shapes) for stem in stems]
    if not problems.names_shapes(arguments):
        suites += [(stem, "quick") for stem in stems]  # small calls, which the others do not have
    if arguments.suite:
        suites = [*problems.suites_of(arguments.suite, stems)]
    for stem, suite in suites:
        words = vars(arguments) | {"shapes": suite}
        if stem == "conv":
            words["direction"] = arguments.direction or "forward,data,weight"
        for backward in {arguments.kind != "hardmax", arguments.backward}:  # which has no gradient
            yield stem, argparse.Namespace(**words | {"backward": backward})


def pose(stem: str, options: argparse.Namespace) -> list[Any]:
    """The problems that options name, of convolutions the plans' too: in another process, since arrays are made."""
    found = problems.problems(stem, options)
    forward = [each for each in found if stem == "conv" and each.direction == "forward"]
    return found + [dataclasses.replace(each, prepared=True) for each in forward]


def compile_common() -> int:
    """Compile what calls take whatever they compute: drivers, the interpreter, what answers repeated calls."""
    import numpy as np

    import numbaprims
    from numbaprims import kernel_cache
    from numbaprims.cpu import call_entry, drivers, interpreter

    before, x = kernel_cache.statistics()["misses"], np.ones(8, np.float32)
    for make in (drivers.serial_driver, drivers.parallel_driver, call_entry.make_entry):
        make()
    for together in (False, True):
        _ = interpreter.make_interpreter(together).address
    with numbaprims.config(device="cpu"):
        numbaprims.relu(x)
    return kernel_cache.statistics()["misses"] - before


def compile_problem(problem: Any) -> int:
    """Compile or load the kernels of a problem on the CPU; how many were compiled."""
    from numbaprims import kernel_cache
    from numbaprims.dispatch import warm

    before = kernel_cache.statistics()["misses"]
    warm.compile_problem(problem)
    return kernel_cache.statistics()["misses"] - before
