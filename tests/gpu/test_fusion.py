"""Fused networks of arrays in a GPU's memory: where their parameters and their concatenations lie."""

import numpy as np
from fusion_cases import RELU, array, conv, norm

import numbaprims
from numbaprims.fusion.layers import Concat, Linear, MaxPool, PReLU
from numbaprims.gpu import memory


def test_networks_of_device_arrays(gpu):
    for layers, shape, layout in [
        ([conv(4, 3), norm(4), RELU, Concat([[conv(2, 4)], [MaxPool(3, 1, 1)], ()])], (1, 3, 6, 5), "NCHW"),
        ([Linear(array(4, 3)), norm(4), RELU, PReLU(array(4))], (2, 3), "NCHW"),
        ([norm(3)], (2, 4, 4, 3), "NHWC"),
    ]:
        net = numbaprims.fuse(layers, shape, layout=layout)
        x = array(*shape)
        y = net(memory.to_device(x))
        assert isinstance(y, memory.DeviceArray)
        np.testing.assert_allclose(memory.to_host(y), net.run_reference(x), rtol=1e-5, atol=1e-5)
