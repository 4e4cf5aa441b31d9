"""Networks as their convolutions: sizes go from layer to layer, so that a wrong one does not fit the next.

Each function walks one network for one image and returns a `Net`: how often each convolution occurs, and how many
multiply-adds they are. Concatenations check that the heights and widths of their parts are equal.
"""

from collections import Counter
from typing import NamedTuple


class Layer(NamedTuple):
    """A convolution of one image: input (c, h, w), k filters of (c / groups, r, s); padding is (rows, columns)."""

    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    stride: int
    padding: tuple[int, int]
    groups: int

    @property
    def out(self) -> tuple[int, int, int]:
        p = (self.h + 2 * self.padding[0] - self.r) // self.stride + 1
        q = (self.w + 2 * self.padding[1] - self.s) // self.stride + 1
        return self.k, p, q

    @property
    def multiply_adds(self) -> int:
        k, p, q = self.out
        return k * p * q * (self.c // self.groups) * self.r * self.s


class Net:
    """What is met on the way; a tensor is its (c, h, w)."""

    def __init__(self) -> None:
        self.layers: Counter[Layer] = Counter()

    @property
    def multiply_adds(self) -> int:
        return sum(layer.multiply_adds * count for layer, count in self.layers.items())

    def conv(self, x, k, size, stride=1, padding="same", groups=1):
        """A convolution; "same" pads half the filter, "valid" not at all."""
        c, h, w = x
        r, s = size if isinstance(size, tuple) else (size, size)
        pads = {"same": (r // 2, s // 2), "valid": (0, 0)}
        pad = pads[padding] if isinstance(padding, str) else (padding, padding)
        assert c % groups == 0 and k % groups == 0, (x, k, groups)
        layer = Layer(c, h, w, k, r, s, stride, pad, groups)
        assert min(layer.out) > 0, layer
        self.layers[layer] += 1
        return layer.out

    def chain(self, x, *steps):
        """Convolutions one after the other; each step is the arguments of `conv` after x."""
        for step in steps:
            x = self.conv(x, *step)
        return x

    @staticmethod
    def pool(x, size, stride, padding=0, ceil=False):
        c, h, w = x
        up = stride - 1 if ceil else 0
        return (c, *((side + 2 * padding - size + up) // stride + 1 for side in (h, w)))

    @staticmethod
    def cat(*parts):
        assert len({part[1:] for part in parts}) == 1, parts
        return (sum(part[0] for part in parts), *parts[0][1:])


def resnet50():
    """He et al. 2015, with the stride in the 3x3 layers (version 1.5)."""
    net = Net()
    x = net.pool(net.conv((3, 224, 224), 64, 7, 2), 3, 2, 1)
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            y = net.chain(x, (width, 1), (width, 3, stride), (4 * width, 1))
            assert y == (x if block else net.conv(x, 4 * width, 1, stride))
            x = y
    assert x == (2048, 7, 7)
    return net


def vgg16():
    """Simonyan and Zisserman 2014, configuration D."""
    net, x = Net(), (3, 224, 224)
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        x = net.pool(net.chain(x, *[(width, 3)] * count), 2, 2)
    assert x == (512, 7, 7)
    return net


def mobilenet():
    """Howard et al. 2017: each block a depthwise 3x3, then a 1x1."""
    net = Net()
    x = net.conv((3, 224, 224), 32, 3, 2)
    blocks = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), *[(512, 1)] * 5, (1024, 2), (1024, 1))
    for width, stride in blocks:
        x = net.conv(net.conv(x, x[0], 3, stride, groups=x[0]), width, 1)
    assert x == (1024, 7, 7)
    return net


def depthwise5x5():
    """Every depthwise 5x5 of MobileNet v3 large and of EfficientNet B0, of images 224 x 224."""
    net = Net()
    mobilenet_v3 = ((72, 56, 2), *[(120, 28, 1)] * 2, (672, 14, 2), *[(960, 7, 1)] * 2)
    efficientnet = ((144, 56, 2), (240, 28, 1), (480, 14, 1), *[(672, 14, 1)] * 2, (672, 14, 2), *[(1152, 7, 1)] * 3)
    for c, side, stride in mobilenet_v3 + efficientnet:
        net.conv((c, side, side), c, 5, stride, groups=c)
    return net


def first():
    """First layers: ResNet and GoogLeNet, DenseNet-161, ZFNet, AlexNet with 64 and with 96 filters."""
    net = Net()
    net.conv((3, 224, 224), 64, 7, 2)
    net.conv((3, 224, 224), 96, 7, 2)
    net.conv((3, 224, 224), 96, 7, 2, padding=1)
    net.conv((3, 224, 224), 64, 11, 4, padding=2)
    net.conv((3, 227, 227), 96, 11, 4, padding="valid")
    return net


def googlenet(five=5):
    """Szegedy et al. 2014, table 1, without the two auxiliary classifiers; some libraries have 3x3 in place of 5x5."""
    net = Net()
    x = net.pool(net.conv((3, 224, 224), 64, 7, 2), 3, 2, ceil=True)
    x = net.pool(net.chain(x, (64, 1), (192, 3)), 3, 2, ceil=True)

    def inception(x, one, three_in, three, five_in, five_out, pooled):
        return net.cat(
            net.conv(x, one, 1),
            net.chain(x, (three_in, 1), (three, 3)),
            net.chain(x, (five_in, 1), (five_out, five)),
            net.conv(net.pool(x, 3, 1, 1), pooled, 1),
        )

    for row in ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)):
        x = inception(x, *row)
    x = net.pool(x, 3, 2, ceil=True)
    for row in (
        (192, 96, 208, 16, 48, 64), (160, 112, 224, 24, 64, 64), (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64), (256, 160, 320, 32, 128, 128),
    ):  # fmt: skip
        x = inception(x, *row)
    x = net.pool(x, 3, 2, ceil=True)
    for row in ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)):
        x = inception(x, *row)
    assert x == (1024, 7, 7)
    return net


def inception_v3():
    """Szegedy et al. 2015 as published with weights (5x5 in the 35x35 blocks), without the auxiliary classifier."""
    net = Net()
    x = net.chain((3, 299, 299), (32, 3, 2, "valid"), (32, 3, 1, "valid"), (64, 3))
    x = net.chain(net.pool(x, 3, 2), (80, 1), (192, 3, 1, "valid"))
    x = net.pool(x, 3, 2)
    for pooled in (32, 64, 64):
        x = net.cat(
            net.conv(x, 64, 1),
            net.chain(x, (48, 1), (64, 5)),
            net.chain(x, (64, 1), (96, 3), (96, 3)),
            net.conv(net.pool(x, 3, 1, 1), pooled, 1),
        )
    x = net.cat(net.conv(x, 384, 3, 2, "valid"), net.chain(x, (64, 1), (96, 3), (96, 3, 2, "valid")), net.pool(x, 3, 2))
    for width in (128, 160, 160, 192):
        x = net.cat(
            net.conv(x, 192, 1),
            net.chain(x, (width, 1), (width, (1, 7)), (192, (7, 1))),
            net.chain(x, (width, 1), (width, (7, 1)), (width, (1, 7)), (width, (7, 1)), (192, (1, 7))),
            net.conv(net.pool(x, 3, 1, 1), 192, 1),
        )
    x = net.cat(
        net.chain(x, (192, 1), (320, 3, 2, "valid")),
        net.chain(x, (192, 1), (192, (1, 7)), (192, (7, 1)), (192, 3, 2, "valid")),
        net.pool(x, 3, 2),
    )
    for _ in range(2):
        three = net.conv(x, 384, 1)
        twice = net.chain(x, (448, 1), (384, 3))
        x = net.cat(
            net.conv(x, 320, 1),
            *(net.conv(part, 384, size) for part in (three, twice) for size in ((1, 3), (3, 1))),
            net.conv(net.pool(x, 3, 1, 1), 192, 1),
        )
    assert x == (2048, 8, 8)
    return net


def inception_v4():
    """Szegedy et al. 2016, figures 3 to 9."""
    net = Net()
    x = net.chain((3, 299, 299), (32, 3, 2, "valid"), (32, 3, 1, "valid"), (64, 3))
    x = net.cat(net.pool(x, 3, 2), net.conv(x, 96, 3, 2, "valid"))
    x = net.cat(
        net.chain(x, (64, 1), (96, 3, 1, "valid")),
        net.chain(x, (64, 1), (64, (7, 1)), (64, (1, 7)), (96, 3, 1, "valid")),
    )
    x = net.cat(net.conv(x, 192, 3, 2, "valid"), net.pool(x, 3, 2))
    for _ in range(4):
        x = net.cat(
            net.conv(net.pool(x, 3, 1, 1), 96, 1),
            net.conv(x, 96, 1),
            net.chain(x, (64, 1), (96, 3)),
            net.chain(x, (64, 1), (96, 3), (96, 3)),
        )
    x = net.cat(
        net.pool(x, 3, 2), net.conv(x, 384, 3, 2, "valid"), net.chain(x, (192, 1), (224, 3), (256, 3, 2, "valid"))
    )
    for _ in range(7):
        x = net.cat(
            net.conv(net.pool(x, 3, 1, 1), 128, 1),
            net.conv(x, 384, 1),
            net.chain(x, (192, 1), (224, (1, 7)), (256, (7, 1))),
            net.chain(x, (192, 1), (192, (1, 7)), (224, (7, 1)), (224, (1, 7)), (256, (7, 1))),
        )
    x = net.cat(
        net.pool(x, 3, 2),
        net.chain(x, (192, 1), (192, 3, 2, "valid")),
        net.chain(x, (256, 1), (256, (1, 7)), (320, (7, 1)), (320, 3, 2, "valid")),
    )
    for _ in range(3):
        short = net.conv(x, 384, 1)
        long = net.chain(x, (384, 1), (448, (1, 3)), (512, (3, 1)))
        x = net.cat(
            net.conv(net.pool(x, 3, 1, 1), 256, 1),
            net.conv(x, 256, 1),
            *(net.conv(short, 256, size) for size in ((1, 3), (3, 1))),
            *(net.conv(long, 256, size) for size in ((1, 3), (3, 1))),
        )
    assert x == (1536, 8, 8)
    return net


NETS = {
    "resnet50": resnet50, "vgg16": vgg16, "mobilenet": mobilenet, "depthwise5x5": depthwise5x5, "first": first,
    "googlenet": googlenet, "inception-v3": inception_v3, "inception-v4": inception_v4,
}  # fmt: skip
