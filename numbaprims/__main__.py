"""``python -m numbaprims``: the same as the command ``numbaprims``."""

import sys

from numbaprims.cli import main

if __name__ == "__main__":
    sys.exit(main())
