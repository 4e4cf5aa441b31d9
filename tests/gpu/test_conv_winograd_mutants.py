"""Mistakes planted in the kernels of Winograd: what its tests would pass anything is found out here."""

import functools

from conv_cases import Case
from gpu.test_conv_mutants import hunt_conv
from gpu.test_mutants import ADDRESSES, PRODUCTS, hunt

transforms = functools.partial(hunt, elsewhere=PRODUCTS)


def test_transforms():
    """Tiles that hang over every edge; the windows, the tiles and the results of each kernel."""
    case = Case((2, 5, 5, 7), (6, 5, 3, 3), padding=1)
    hunt_conv("winograd_2x2", "forward", case, ADDRESSES, way=transforms)


def test_channels_last():
    case = Case((1, 4, 6, 5), (5, 4, 3, 3), padding=1)
    hunt_conv("winograd_2x2", "data", case, ADDRESSES, layout="NHWC", way=transforms)


def test_weight():
    case = Case((2, 3, 5, 5), (5, 3, 3, 3), padding=1)
    hunt_conv("winograd_weight", "weight", case, ADDRESSES, way=transforms)


def test_fused():
    case = Case((1, 9, 5, 7), (34, 9, 3, 3), padding=1)
    hunt_conv("winograd_fused", "forward", case, ADDRESSES | {"barrier removed"})
