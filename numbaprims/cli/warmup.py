"""``numbaprims warmup``: compile kernels into the kernel cache, in as many processes as there are CPUs."""

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from time import perf_counter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("stems", nargs="*", metavar="stem", help="gemm, gemv, ger, activation, conv; default all")
    parser.add_argument("--jobs", type=int, default=None, help="processes; default one a CPU that may be used")


def run(arguments: argparse.Namespace) -> int:
    from tqdm.auto import tqdm

    from numbaprims import kernel_cache
    from numbaprims.cpu import threads, warm

    try:
        specs = warm.specs(arguments.stems or warm.STEMS)
    except ValueError as error:
        print(f"numbaprims warmup: {error}", file=sys.stderr)
        return 2
    jobs = max(1, min(arguments.jobs or threads.default_threads(), len(specs)))
    began, failures = perf_counter(), []
    # Compilation holds one lock for a whole process, so threads would not help; spawned and not forked,
    # because a child forked after an OpenMP region dies at its own first one.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = {pool.submit(warm.compile_spec, spec): spec for spec in specs}
        for future in tqdm(as_completed(futures), total=len(futures), unit="spec", disable=None):
            failure = future.exception()
            if failure is not None:
                path, values = futures[future]
                failures.append(f"{path}{values}: {type(failure).__name__}: {failure}")
    for line in failures:
        print(line, file=sys.stderr)
    print(
        f"{len(specs) - len(failures)} of {len(specs)} ready in {perf_counter() - began:.1f} s, "
        f"{jobs} processes, in {kernel_cache.directory()}"
    )
    return 1 if failures else 0
