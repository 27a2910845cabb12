import threading
from collections.abc import Iterator

import pytest

from hdccf.data.samplers import prefetch


def test_all_come_in_order() -> None:
    assert list(prefetch(iter([3, 1, None, 2]))) == [3, 1, None, 2]
    assert list(prefetch(iter([]))) == []


def test_the_next_is_drawn_by_a_thread_while_one_is_at_work() -> None:
    drawn = threading.Event()
    drawers = []

    def batches() -> Iterator[int]:
        for number in range(3):
            drawers.append(threading.current_thread())
            if number == 1:
                drawn.set()
            yield number

    ahead = prefetch(batches())
    assert next(ahead) == 0
    assert drawn.wait(10), "the second is drawn though nobody has asked for it"
    assert list(ahead) == [1, 2]
    assert threading.current_thread() not in drawers


def test_an_error_comes_where_its_batch_would() -> None:
    def batches() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    ahead = prefetch(batches())
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="no more"):
        next(ahead)


def test_whoever_stops_early_leaves_no_thread() -> None:
    ahead = prefetch(iter(range(1000)))
    assert next(ahead) == 0
    ahead.close()  # type: ignore[attr-defined]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("hdccf-ahead")]
