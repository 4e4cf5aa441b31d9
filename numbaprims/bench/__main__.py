"""`python -m numbaprims.bench`: the command by itself, and (with JSON) the process that it runs itself in."""

import argparse
import json
import sys

from numbaprims.bench import command
from numbaprims.cli import told


def main() -> int:
    """Parse a command line, or take the arguments that the parent process had parsed already."""
    if len(sys.argv) == 2 and sys.argv[1].startswith("{"):
        return command.run(argparse.Namespace(**json.loads(sys.argv[1])))
    parser = argparse.ArgumentParser(prog="numbaprims bench", description=command.__doc__)
    command.add_arguments(parser)
    return command.run(parser.parse_args())


if __name__ == "__main__":
    sys.exit(told(main))
