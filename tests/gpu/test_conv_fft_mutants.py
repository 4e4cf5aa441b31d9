"""Mistakes planted in the kernels of Fourier convolutions."""

import numpy as np
import pytest
from conv_cases import FUNCTIONS, Case, arguments, to_layout
from gpu.test_mutants import ADDRESSES, PRODUCTS, hunt, integers

import numbaprims


@pytest.mark.parametrize("direction, layout", [("forward", "NCHW"), ("weight", "NHWC")])
def test_fft(direction, layout):
    """Of integers, whose sums lie far apart beside the errors of a transform."""
    rng = np.random.default_rng(3)
    case = Case((1, 4, 14, 25), (6, 2, 5, 4), padding=((2, 1), (0, 3)), groups=2)
    first, second = (integers(rng, *shape) for shape in case.operand_shapes(direction))
    want = case.expected(direction, first.astype(float), second.astype(float))
    first = to_layout(first, layout)
    second = to_layout(second, layout if direction == "weight" else "NCHW")
    more, window = arguments(case, direction, layout)
    call = getattr(numbaprims, FUNCTIONS[direction])
    # all filters begin and end alike, so that it is the same whose bounds are read
    alike = "ld.shared.v4.u32" if direction == "forward" else "no such line"
    kinds = ADDRESSES | {"barrier removed", "syncwarp removed"}
    hunt(lambda: np.rint(call(first, second, *more, algorithm="fft", **window)), want, kinds, alike, elsewhere=PRODUCTS)
