"""The benchmark of conv: its suites, its rivals, its targets; and the figures that `numbaprims reproduce` draws."""

from collections import Counter

import conv_nets
import pytest

from numbaprims.bench import cases
from numbaprims.bench.stems import conv_suites

# Suites -----------------------------------------------------------------------------------------------

# Multiply-adds of the convolutions for one image, as they are published; GoogLeNet's 1.5e9 are those of its form
# with 3x3 in place of 5x5, which torchvision has.
GIGA = {"resnet50": 4.1, "vgg16": 15.3, "mobilenet": 0.57, "inception-v3": 5.7, "inception-v4": 12.3}


@pytest.mark.parametrize("name", GIGA)
def test_the_walk_through_a_network_has_its_published_size(name):
    assert conv_nets.NETS[name]().multiply_adds / 1e9 == pytest.approx(GIGA[name], rel=0.03)


def test_googlenet_has_its_published_size():
    assert conv_nets.googlenet(five=3).multiply_adds / 1e9 == pytest.approx(1.5, rel=0.03)
    assert conv_nets.googlenet().multiply_adds / 1e9 == pytest.approx(1.58, rel=0.03)


@pytest.mark.parametrize("name", conv_nets.NETS)
def test_a_suite_has_the_layers_of_its_network(name):
    walked = conv_nets.NETS[name]()
    listed: Counter[conv_nets.Layer] = Counter()
    for layer in conv_suites.layers(cases.load_suites("conv")[name], [1]):
        assert layer.stride[0] == layer.stride[1] and layer.dilation == (1, 1) and layer.n == 1
        key = conv_nets.Layer(
            layer.c, layer.h, layer.w, layer.k, layer.r, layer.s, layer.stride[0], layer.padding, layer.groups
        )
        assert key not in listed, "a layer stands once, with its count"
        listed[key] = layer.count
        assert layer.output == key.out
        assert layer.flops == 2 * key.multiply_adds
    assert listed == walked.layers


def test_deepbench_is_there():
    found = conv_suites.layers(cases.load_suites("conv")["deepbench"], [1])
    assert len(found) == len(set(found)) == 191, "its 217 rows without 26 repeated ones"
    assert {layer.n for layer in found} == {1, 2, 4, 8, 16, 32}
    speech = next(layer for layer in found if layer.s == 20)
    assert (speech.r, speech.h, speech.w) == (5, 161, 700)
    assert all(min(layer.output) > 0 for layer in found)
