"""The frontends, as far as they go without the library that they are for."""

import subprocess
import sys

CODE = """
import sys
sys.modules["torch"] = None
import numbaprims.frontends
try:
    import numbaprims.frontends.torch
except ImportError as error:
    print(error)
"""


def test_without_torch_the_error_says_what_to_install():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "numbaprims.frontends.torch needs torch: pip install 'numbaprims[torch]'"


def test_numbaprims_never_imports_torch():
    code = "import sys, numpy, numbaprims.frontends; numbaprims.relu(numpy.ones(2)); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
