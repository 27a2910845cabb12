"""Interactions that were made in two ways: equal, value for value."""

from typing import Any

from hdccf.data.interactions import Interactions


def assert_same(left: Interactions, right: Interactions) -> None:
    assert left.fingerprint == right.fingerprint
    assert left.user_ids.to_list() == right.user_ids.to_list()
    assert left.item_ids.to_list() == right.item_ids.to_list()
    for name in ("users", "items", "times", "counts"):
        assert_equal(getattr(left, name), getattr(right, name))
    for one, other in ((left.by_user, right.by_user), (left.by_item, right.by_item)):
        assert one.starts.tolist() == other.starts.tolist()
        assert one.neighbours.tolist() == other.neighbours.tolist()
        if not isinstance(one.rows, slice):
            assert_equal(one.rows, other.rows)


def assert_equal(left: Any, right: Any) -> None:
    assert (left is None) == (right is None)
    if left is not None:
        assert left.dtype == right.dtype
        assert left.tolist() == right.tolist()
