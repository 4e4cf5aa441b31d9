"""Public functions inside a user's own `@njit`: the bits, errors and keywords of the public call."""

import functools

import numba
import numpy as np
import pytest
from numba.core.errors import TypingError

import numbaprims
import numbaprims.jitted

numbaprims.jitted.init()
pytestmark = pytest.mark.cpu
DTYPES = (np.float32, np.float64)


@numba.njit
def maybe(x, there):
    """x or None: the type of both. (A conditional expression as argument is two calls to Python 3.13.)"""
    return x if there else None


@functools.lru_cache(maxsize=1)  # a test that asks again has it; other tests learn nothing of its records
def compiled(parameters, expression, **options):
    """(the expression inside @njit, the same outside)"""
    names = {"np": np, "nb": numbaprims, "maybe": maybe}
    exec(f"def f({parameters}): return {expression}", names)
    return numba.njit(**options)(names["f"]), names["f"]


def refuse_alike(inside, outside, *given):
    """Compiled code refuses what the public call refuses, in its words, and each time: no record is left behind."""
    with pytest.raises((TypeError, ValueError, IndexError)) as wanted:
        outside(*given)
    for _ in range(2):
        with pytest.raises(wanted.type) as got:
            inside(*given)
        assert got.type is wanted.type and str(got.value) == str(wanted.value)


def same(got, want):
    pairs = zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]
    for x, y in pairs:
        assert x.dtype == y.dtype and x.shape == y.shape
        np.testing.assert_array_equal(x, y)
        assert not y.size or np.isfinite(y).any()


def check(parameters, expression, *args):
    """Both on copies of the arguments; what is one array stays one."""
    results = []
    for function in compiled(parameters, expression):
        made = {}
        copies = [made.setdefault(id(x), x.copy(order="K")) if isinstance(x, np.ndarray) else x for x in args]
        results += [function(*copies), *(x for x in copies if isinstance(x, np.ndarray))]
    half = len(results) // 2
    for got, want in zip(results[:half], results[half:], strict=True):
        same(got, want)


def drawn(rng, *shape, dtype=np.float32):
    return rng.standard_normal(shape).astype(dtype)


# one value of k, one row or column, left-over columns, blocks beyond the stack's scratch memory, several of them
SHAPES = ((1, 1, 1), (2, 3, 4), (7, 5, 33), (64, 64, 64), (100, 49, 33), (1, 100, 50), (90, 1, 40), (300, 200, 400))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_have_the_bits_of_the_public_call(rng, dtype):
    plain = compiled("a, b", "nb.gemm(a, b)")
    full = compiled(
        "a, b, c, bias, alpha, beta, t",
        "nb.gemm(a, b, c=c, alpha=alpha, beta=beta, bias=bias, activation='tanh', trans_a=t, trans_b=not t)",
    )
    layer = compiled("x, w, b", "nb.linear(x, w, b, activation='relu')")
    vector = compiled("a, x, y, t", "nb.gemv(a, x, y=y, alpha=0.5, beta=2, trans=t)")
    update = compiled("x, y, a", "nb.ger(x, y, a=a, alpha=-0.5)")
    for m, n, k in SHAPES:
        a, b, c, bias = (drawn(rng, *shape, dtype=dtype) for shape in ((m, k), (k, n), (m, n), (n,)))
        same(*(f(a, b) for f in plain))
        for alpha, beta in ((1.0, 0.0), (0.5, 0.0), (1.0, 1.0), (2.0, 0.5)):
            same(*(f(a, np.ascontiguousarray(b.T), c, bias, alpha, beta, False) for f in full))
        same(*(f(np.ascontiguousarray(a.T), b, c, bias, 1, 1, True) for f in full))
        same(*(f(a, np.ascontiguousarray(b.T), bias) for f in layer))
        same(*(f(a, b[:, 0], c[:, 0], False) for f in vector))
        same(*(f(a, c[:, 0], a[0], True) for f in vector))
        same(*(f(c[:, 0], bias, c) for f in update))


@pytest.mark.parametrize("dtype", DTYPES)
def test_layouts(rng, dtype):
    product = compiled("a, b", "nb.gemm(a, b)")
    tanh = compiled("x", "nb.tanh(x)")
    whole = drawn(rng, 40, 60, dtype=dtype)
    frozen = whole[:20].copy()
    frozen.flags.writeable = False
    for a in (whole[:20, :30], whole[:20, :30].copy("F"), whole[::2, ::2], whole[19::-1, 29::-1], frozen[:, :30]):
        for b in (whole[:30, :10], whole[:30, :10].copy("F"), whole[:10, :30].T, whole[30:0:-1, ::6]):
            same(*(f(a, b) for f in product))
        same(*(f(a) for f in tanh))
        same(*(f(a[:, 0]) for f in tanh))


@pytest.mark.parametrize(
    "expression, shapes",
    [
        ("nb.gemm(a, b)", ((3, 1, 4, 5), (2, 5, 6))),
        ("nb.gemm(a, b, bias=c)", ((48, 64), (64, 50), (50,))),
        ("nb.gemm(a, b, bias=c)", ((48, 64), (64, 50), (48, 1))),
        ("nb.gemm(a, b, c=c, beta=0.5)", ((4, 5), (5, 6), (6,))),
        ("nb.gemm(a, b, c=c, beta=1.0, out=c)", ((4, 5), (5, 6), (4, 6))),
        ("nb.gemm(a, b, out=c)", ((4, 5), (5, 6), (4, 6))),
        ("nb.gemm(a, a)", ((5, 5),)),
        ("nb.gemm(a, b, out_dtype='float32')", ((5, 5), (5, 5))),
        ("nb.gemm(a, b, out_dtype=np.float32)", ((5, 5), (5, 5))),
        ("nb.gemm(a, b)", ((0, 5), (5, 4))),
        ("nb.gemm(a, b)", ((3, 0), (0, 4))),
        ("nb.linear(a, b)", ((5,), (3, 5))),
        ("nb.linear(a, b)", ((2, 4, 5), (3, 5))),
        ("nb.linear(a, b, out=c)", ((4, 5), (3, 5), (4, 3))),
        ("nb.gemv(a, b, out=c)", ((4, 5), (5,), (4,))),
        ("nb.gemv(a, b, y=c, beta=1, out=c)", ((4, 5), (5,), (4,))),
        ("nb.ger(a, b)", ((4,), (5,))),
        ("nb.ger(a, b, a=c, alpha=-1, out=c)", ((4,), (5,), (4, 5))),
        ("nb.ger(a, b, out=c)", ((4,), (5,), (4, 5))),
    ],
)
def test_calls(rng, expression, shapes):
    check(", ".join("abc"[: len(shapes)]), expression, *(drawn(rng, *shape) for shape in shapes))


def test_integers_are_summed_in_int32(rng):
    for left in (np.int8, np.uint8):
        a, b = rng.integers(0, 100, (6, 40)).astype(left), rng.integers(-100, 100, (40, 9)).astype(np.int8)
        check("a, b", "nb.gemm(a, b)", a, b)


@pytest.mark.parametrize(
    "parameters, expression, shapes",
    [
        ("a, b", "nb.gemm(a, b)", ((3, 4), (5, 6))),
        ("a, b", "nb.gemm(a, b)", ((2, 3, 4), (5, 4, 6))),
        ("a, b", "nb.gemm(a, b)", ((3,), (3, 4))),
        ("a, b", "nb.gemm(a, b, beta=1.0)", ((4, 4), (4, 4))),
        ("a, b", "nb.gemm(a, b, activation='none of them')", ((4, 4), (4, 4))),
        ("a, b", "nb.gemm(a, b, out_dtype='float64')", ((4, 4), (4, 4))),
        ("a, b", "nb.gemm(a, b, bias=b[0, :3])", ((4, 4), (4, 4))),
        ("a, b", "nb.gemm(a, b, out=a)", ((4, 4), (4, 4))),
        ("a, b", "nb.gemm(a, b, out=b[:2])", ((4, 4), (4, 4))),
        ("a, b", "nb.gemm(a, np.ones((4, 4)))", ((4, 4), (4, 4))),
        ("a", "nb.gemm(np.ones((4, 4), np.int64), np.ones((4, 4), np.int64))", ((1,),)),
        ("a, b", "nb.linear(a, b)", ((4, 4), (4, 5))),
        ("a, b", "nb.gemv(a, b)", ((4, 4), (5,))),
        ("a, b", "nb.gemv(a, b, trans=True)", ((4, 5), (5,))),
        ("a, b", "nb.gemv(a, b, beta=2.0)", ((4, 4), (4,))),
        ("a, b", "nb.ger(a, b)", ((4, 4), (5,))),
        ("a, b", "nb.ger(a, b, out=np.ones((4, 4), np.float32))", ((4,), (5,))),
        ("a", "nb.tanh(a[1:], out=a[:-1])", ((9,),)),
        ("a", "nb.tanh(np.ones(3, np.int64))", ((1,),)),
        ("a, b", "nb.tanh_backward(a, b)", ((9,), (8,))),
        ("a", "nb.hard_tanh(a, 1.0, -1.0)", ((9,),)),
        ("a", "nb.celu(a, alpha=0)", ((9,),)),
        ("a", "nb.glu(a, axis=5)", ((9, 2),)),
        ("a", "nb.glu(a)", ((2, 9),)),
        ("a, b", "nb.prelu(a, b)", ((2, 9), (3,))),
    ],
)
def test_errors_are_those_of_the_public_call(rng, parameters, expression, shapes):
    arguments = [drawn(rng, *shape) for shape in shapes]
    inside, outside = compiled(parameters, expression)
    with pytest.raises((TypeError, ValueError)) as wanted:
        outside(*arguments)
    before = [x.copy() for x in arguments]
    for _ in range(2):  # no record is left behind
        with pytest.raises(wanted.type) as got:
            inside(*arguments)
        assert got.type is wanted.type
        if "out_dtype" not in expression:  # a literal 'float64' there, the caller's word here
            assert str(got.value) == str(wanted.value)
    for x, y in zip(arguments, before, strict=True):
        np.testing.assert_array_equal(x, y)


def test_an_out_that_cannot_be_written(rng):
    x, out = drawn(rng, 5), np.zeros(5, np.float32)
    out.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        compiled("x, out", "nb.tanh(x, out=out)")[0](x, out)


def test_unaligned_arrays(rng):
    memory = np.zeros(4 * 64 + 64, np.uint8)
    aligned = drawn(rng, 64)
    inside, outside = compiled("x", "nb.tanh(x)")
    same(inside(aligned), outside(aligned))  # leaves a record that the next array must not take
    for at in (1, 2, 3):
        x = memory[at : at + 4 * 64].view(np.float32)
        x[:] = aligned
        assert not x.flags.aligned
        same(inside(x), outside(x))
        out = memory[at : at + 4 * 64].view(np.float32)
        with pytest.raises(ValueError, match="not aligned"):
            compiled("x, out", "nb.tanh(x, out=out)")[0](aligned, out)


@pytest.mark.parametrize(
    "expression, words",
    [
        ("nb.gemm(a, a, activation=('leaky_relu', 0.1))", "numbaprims.gemm inside @njit: activation is"),
        ("nb.gemm(a, a, alpha='1')", "numbaprims.gemm inside @njit: alpha is"),
        ("nb.gemm(a, a, trans_a=a)", "numbaprims.gemm inside @njit: trans_a is"),
        ("nb.gemm(a, 3)", "numbaprims.gemm inside @njit: b is"),
        ("nb.gemm(a, None)", "numbaprims.gemm inside @njit: b is"),
        ("nb.gemm(a, a, bias=maybe(a, a.size > 0))", "numbaprims.gemm inside @njit: bias is"),
        ("nb.linear(a, a, out=4)", "numbaprims.linear inside @njit: out is"),
        ("nb.gemm(a, a, out_dtype=4)", "numbaprims.gemm inside @njit: out_dtype is"),
        ("nb.gemm(a, a, out_dtype='float8')", "out_dtype is 'float8'"),
        ("nb.gelu(a, approximate=1)", "numbaprims.gelu inside @njit: approximate is"),
        ("nb.glu(a, axis=0.5)", "numbaprims.glu inside @njit: axis is"),
        ("nb.leaky_relu(a, negative_slope=maybe(1.0, a.size > 0))", "inside @njit: negative_slope is"),
        ("nb.relu(a.T.T[0, 0])", "numbaprims.relu inside @njit: x is"),
        ("nb.activation(a, 'relu', alpha=1.0)", "relu got 'alpha'; it takes no parameters"),
        ("nb.activation(a, 'threshold')", "threshold needs threshold"),
        ("nb.activation(a, 'nonsense')", "kind is 'nonsense'"),
        ("nb.activation(a, str(a.size))", "kind must be a literal string"),
        ("nb.activation_backward(a, a, None, 'tanh')", "y is None; the gradient of tanh is computed from it"),
        ("nb.gemm(a, a, nonsense=1)", "nonsense"),
    ],
)
def test_refusals_name_the_argument(rng, expression, words):
    with pytest.raises((TypeError, TypingError)) as refused:
        compiled("a", expression)[0](drawn(rng, 4, 4))
    assert words in str(refused.value)


def test_an_unknown_kind_says_so_first(rng):
    with pytest.raises(TypeError, match=r"^numbaprims\.activation inside @njit: kind is 'nope'; it must be one of"):
        compiled("a", "nb.activation(a, 'nope')")[0](drawn(rng, 4, 4))


@pytest.mark.parametrize("name, call", [("lstm_train", "nb.lstm_train(a, a)"), ("explain", "nb.explain('gemm', a, a)")])
def test_what_does_not_compile_says_so_first(rng, name, call):
    """Not behind Numba's "No implementation of function Function(<function conv at 0x...>) found for signature"."""
    with pytest.raises(TypeError, match=rf"^numbaprims\.{name} cannot be called inside @njit; .* numba\.objmode$"):
        compiled("a", call)[0](drawn(rng, 4, 4))


def test_half_precision_is_refused_by_numba():
    # Numba's CPU target has no float16 and no bfloat16: such arrays do not reach us
    with pytest.raises((NotImplementedError, TypingError)):
        compiled("x", "nb.relu(x)")[0](np.ones(3, np.float16))
