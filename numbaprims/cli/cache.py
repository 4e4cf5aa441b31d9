"""``numbaprims cache info`` and ``numbaprims cache clear``: the cache of compiled kernels."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="info|clear")
    actions.add_parser("info", help="directory, entries and size")
    actions.add_parser("clear", help="delete every entry; kernels compile again at their next use")


def run(arguments: argparse.Namespace) -> int:
    from numbaprims import kernel_cache

    if arguments.action == "clear":
        count = len(kernel_cache.entries())
        kernel_cache.clear()
        print(f"{count} kernels deleted from {kernel_cache.directory()}")
        return 0
    print(f"directory  {kernel_cache.directory()}")
    print(f"entries    {len(kernel_cache.entries())}")
    print(f"size       {kernel_cache.size() / 2**20:.1f} MiB")
    return 0
