"""A kernel is compiled again exactly when something that its code depends on has changed."""

import pytest


def counts(found: dict) -> tuple[int, int]:
    return found["hits"], found["saves"]


def test_edited_helper_is_noticed(toy):
    assert toy.run("results", [3], 5)["value"] == [15]
    assert counts(toy.run("results", [3], 5)) == (1, 0)
    toy.edit("helpers", "EXTRA = 0", "EXTRA = 100")
    found = toy.run("results", [3], 5)
    assert found["value"] == [115] and counts(found) == (0, 1)
    toy.edit("offsets", "OFFSET = 0", "OFFSET = 1000")  # two imports away
    found = toy.run("results", [3], 5)
    assert found["value"] == [1115] and counts(found) == (0, 1)
    toy.edit("offsets", "OFFSET = 1000", "OFFSET = 0")  # back: the old kernel is still there
    found = toy.run("results", [3], 5)
    assert found["value"] == [115] and counts(found) == (1, 0)


def test_edit_elsewhere_keeps_the_kernels(toy):
    toy.run("results", [3], 5)
    toy.edit("unrelated", "nobody", "nobody at all")
    toy.edit("__init__", "small", "very small")
    assert counts(toy.run("results", [3], 5)) == (1, 0)


def test_constant_that_depends_on_the_machine(toy):
    assert toy.run("results", [3], 5)["value"] == [15]
    found = toy.run("results", [3], 5, TOY_WIDTH="8")
    assert found["value"] == [120] and counts(found) == (0, 1)


def test_closure_that_the_spec_forgets(toy):
    found = toy.script("""
        import json
        from toy import kernels
        from numbaprims import kernel_cache
        right = [
            kernels.make_linked(scale, spec=("forgotten",))(10) == kernels.expected_chain(scale, 10)
            for scale in (2, 3)
        ]
        print(json.dumps([right, kernel_cache.statistics()]))
    """)
    assert found == [[True, True], {"hits": 0, "misses": 2, "saves": 2, "errors": 0}]


def test_edit_while_the_process_runs(toy):
    # The modules in memory are older than the files: a kernel kept now would carry the wrong digest.
    found = toy.script("""
        import json, warnings
        from pathlib import Path
        from toy import kernels
        from numbaprims import kernel_cache
        path = Path("toy/helpers.py")
        path.write_text(path.read_text().replace("EXTRA = 0", "EXTRA = 100"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            values = [kernels.make_pointer(scale)(5) for scale in (3, 4)]
        print(json.dumps([values, kernel_cache.statistics()["saves"], [str(w.message) for w in caught]]))
    """)
    values, saves, warned = found
    assert values == [15, 20] and saves == 0
    assert len(warned) == 1 and "helpers.py was edited while this process ran" in warned[0]
    assert toy.run("results", [3], 5)["value"] == [115]


@pytest.mark.parametrize(
    "variables",
    [
        {"NUMBA_CPU_NAME": "x86-64-v2", "NUMBA_CPU_FEATURES": ""},
        {"NUMBA_OPT": "1"},
        {"NUMBA_BOUNDSCHECK": "1"},
    ],
    ids=lambda variables: next(iter(variables)),
)
def test_other_target_or_compiler_option(toy, variables):
    toy.run("results", [3], 5)
    found = toy.run("results", [3], 5, **variables)
    assert found["value"] == [15] and counts(found) == (0, 1)
    assert counts(toy.run("results", [3], 5)) == (1, 0)


def test_options_and_spec_tell_kernels_apart(toy):
    found = toy.script("""
        import json
        from toy import kernels
        from numbaprims import kernel_cache
        f = kernels.expected_chain
        caches = [
            kernel_cache.KernelCache(f, "name", ("f32", 8), {"fastmath": {"contract"}}),
            kernel_cache.KernelCache(f, "name", ("f32", 16), {"fastmath": {"contract"}}),
            kernel_cache.KernelCache(f, "name", ("f32", 8), {"fastmath": {"contract", "arcp"}}),
            kernel_cache.KernelCache(f, "other", ("f32", 8), {"fastmath": {"contract"}}),
        ]
        keys = {cache.key(sig) for cache in caches for sig in ("i8(i8)", "f8(f8)")}
        print(json.dumps([len(keys), sorted(key.decode() for key in keys)]))
    """)
    assert found[0] == 8
    again = toy.script("""
        import json
        from toy import kernels
        from numbaprims import kernel_cache
        options = {"fastmath": {"arcp", "contract"}}
        cache = kernel_cache.KernelCache(kernels.expected_chain, "name", ("f32", 8), options)
        print(json.dumps(cache.key("i8(i8)").decode()))
    """)
    assert again in found[1], "the key of the same kernel differs between processes"
