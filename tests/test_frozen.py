"""Read-only JSON data that still behaves like plain data, and its writable copy."""

from __future__ import annotations

import copy
import json
import pickle
from collections import OrderedDict
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goliath_actors._frozen import FrozenDict, FrozenList, freeze, thaw

json_data = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


def containers(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [value, *(inner for item in value.values() for inner in containers(item))]
    if isinstance(value, list):
        return [value, *(inner for item in value for inner in containers(item))]
    return []


@given(json_data)
def test_frozen_data_compares_and_serialises_like_plain_data_and_thaws_to_an_independent_copy(data: Any) -> None:
    frozen = freeze(data)
    assert frozen == data
    assert json.dumps(frozen) == json.dumps(data)
    assert all(type(container) in (FrozenDict, FrozenList) for container in containers(frozen))
    for plain in (thaw(frozen), copy.deepcopy(frozen)):
        assert plain == data
        assert all(type(container) in (dict, list) for container in containers(plain))
    assert freeze(frozen) is frozen
    assert pickle.loads(pickle.dumps(frozen)) == data


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.__setitem__("a", 1),
        lambda d: d.update(a=1),
        lambda d: d.pop("a"),
        lambda d: d.clear(),
        lambda d: d.setdefault("b", 1),
        lambda d: d.__ior__({"b": 1}),
        lambda d: d["xs"].append(3),
        lambda d: d["xs"].__setitem__(0, 3),
        lambda d: d["xs"].__iadd__([3]),
        lambda d: d["xs"].sort(),
        lambda d: d["xs"].__delitem__(0),
    ],
)
def test_frozen_data_refuses_every_change_and_says_what_to_do(change: Any) -> None:
    frozen = freeze({"a": 0, "xs": [2, 1]})
    with pytest.raises(TypeError, match="return a changed copy"):
        change(frozen)
    assert frozen == {"a": 0, "xs": [2, 1]}


def test_shallow_copies_are_plain() -> None:
    assert type(copy.copy(freeze({"a": 1}))) is dict
    assert type(freeze({"a": 1}).copy()) is dict
    assert type(copy.copy(freeze([1]))) is list
    assert type(freeze([1]).copy()) is list


class Pair(NamedTuple):
    left: int
    right: int


def test_other_mappings_and_tuples_are_data_and_opaque_objects_pass() -> None:
    opaque = object()
    frozen = freeze({"m": MappingProxyType({"x": 1}), "o": OrderedDict(y=2), "t": (1, 2), "p": Pair(1, 2), "q": opaque})
    assert frozen == {"m": {"x": 1}, "o": {"y": 2}, "t": [1, 2], "p": Pair(1, 2), "q": opaque}
    thawed = thaw({"t": (1, [2]), "s": {3}, "q": opaque})
    assert thawed == {"t": (1, [2]), "s": {3}, "q": opaque}
    assert thawed["q"] is opaque
