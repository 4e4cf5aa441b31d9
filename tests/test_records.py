"""Keys and records of tuning databases: plain JSON that stays readable from release to release."""

import dataclasses
import json
import math

import numpy as np
import pytest

import numbaprims
from numbaprims.dispatch import registry
from numbaprims.dispatch.explain import problem_of
from numbaprims.dispatch.problem import Problem
from numbaprims.tuning import records
from numbaprims.tuning.records import Record


def key():
    x = np.ones(24, np.float32)
    return records.key_of(problem_of("ger", x, x), registry.target("cpu"))


GOOD = Record("naive", 1, {}, 1e-6, 2, "toolchain")


@dataclasses.dataclass(frozen=True)
class Inner:
    kind: str
    slope: float = dataclasses.field(default=0.0, compare=False)


@dataclasses.dataclass(frozen=True)
class Toy(Problem):
    stem = "toy"
    size: tuple[int, ...]
    inner: Inner
    flag: bool = False
    strides: tuple[int, ...] = dataclasses.field(default=(), compare=False)


def test_a_key_is_the_fields_by_name_and_defaults_are_left_out():
    fields = records.fields_of(Toy((2, 3), Inner("relu", 0.5), strides=(3, 1)))
    assert fields == {"size": [2, 3], "inner": {"kind": "relu"}}
    assert records.fields_of(Toy((2, 3), Inner("relu"), True))["flag"] is True
    assert records.dump({"b": 1, "a": (True, None, "ä")}) == '{"a":[true,null,"\\u00e4"],"b":1}'
    # a field that a later release adds, with a default, leaves the keys of earlier releases as they are
    later = dataclasses.make_dataclass(
        "Later", [("layout", str, "NCHW")], bases=(Toy,), frozen=True, namespace={"stem": "toy"}
    )
    assert records.fields_of(later((2, 3), Inner("relu"))) == fields


def test_stored_fields_come_back_and_strange_ones_are_refused():
    back = records.stored(Toy, {"size": [2, 3], "inner": {"kind": "relu"}})
    assert (back.size, back.inner.kind, back.flag) == ((2, 3), "relu", False) and not hasattr(back, "strides")
    with pytest.raises(ValueError, match="no field 'colour'"):
        records.stored(Toy, {"size": [2], "inner": {"kind": "relu"}, "colour": 1})
    with pytest.raises(ValueError, match="needs the field 'inner'"):
        records.stored(Toy, {"size": [2]})
    with pytest.raises(TypeError, match="cannot keep"):
        records.fields_of(Toy((2,), object()))


def test_settings_that_decide_who_may_run_are_part_of_the_key():
    plain = key()
    assert plain.settings == "{}" and plain.stem == "ger"
    with numbaprims.config(accuracy="fast", allow_tf32=True, threads=1):
        assert json.loads(key().settings) == {"accuracy": "fast", "allow_tf32": True}
        assert dataclasses.replace(key(), settings="{}") == plain, "threads are in no key"


@pytest.mark.parametrize(
    "change, says",
    [({"solver": 3}, "solver"), ({"version": True}, "version"), ({"config": []}, "config"),
     ({"config": {"mr": [1]}}, "config"), ({"seconds": 0}, "seconds"), ({"seconds": math.inf}, "seconds"),
     ({"seconds": "1"}, "seconds"), ({"threads": None}, "threads")],
)  # fmt: skip
def test_a_record_is_checked_field_by_field(change, says):
    good = GOOD.document()
    assert Record.of_document(json.loads(json.dumps(good))) == GOOD
    with pytest.raises(ValueError, match=f"its {says}"):
        Record.of_document({**good, **change})
    with pytest.raises(ValueError, match="its stem"):
        records.Key.of_document({**key().document(), "stem": 1})
