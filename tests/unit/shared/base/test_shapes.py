"""The shape of JSON, before anything is read from it."""

import pytest

from penstock.base.shapes import (
    find_misfit,
    has_fields,
    has_keys,
    is_list_of_objects,
    is_object,
)


@pytest.mark.parametrize("found", [None, [], "x", 1, True])
def test_only_objects_have_fields(found):
    assert not is_object(found)
    assert not has_fields(found, str)
    assert not has_keys(found, [])


def test_the_first_field_that_does_not_fit_is_named():
    kinds = {"site": str, "persons": int, "share": (float, int)}
    assert find_misfit({"site": "a", "persons": 3, "share": 1}, kinds) is None
    assert find_misfit({"site": "a"}, kinds) == "persons"
    assert find_misfit({"site": 1, "persons": "x"}, kinds) == "site"


def test_truth_is_no_number():
    assert find_misfit({"n": True}, {"n": int}) == "n"
    assert find_misfit({"n": True}, {"n": (float, int)}) == "n"
    assert find_misfit({"n": True}, {"n": bool}) is None


def test_lists_hold_objects_alone():
    assert is_list_of_objects([])
    assert is_list_of_objects([{}, {"a": 1}])
    assert not is_list_of_objects([{}, 1])
    assert not is_list_of_objects({})
