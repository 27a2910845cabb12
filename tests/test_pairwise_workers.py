"""Parts shared among threads: all of them once, in order, with torch's own settings untouched."""

import threading
from collections.abc import Sequence

import pytest
import torch

from hdccf.kernels.pairwise import share


@pytest.mark.parametrize("parts", [0, 1, 2, 7, 20])
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_each_part_is_worked_on_once_and_in_order(parts: int, threads: int) -> None:
    results = share(list, range(parts), threads)
    assert [part for result in results for part in result] == list(range(parts))
    sizes = [len(result) for result in results]
    assert max(sizes) - min(sizes) <= 1


def test_each_thread_has_one_of_torch_and_records_no_gradients() -> None:
    def settings(parts: Sequence[int]) -> tuple[str, int, bool]:
        return threading.current_thread().name, torch.get_num_threads(), torch.is_grad_enabled()

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for name, threads, recording in share(settings, range(4), 4):
            assert name.startswith("hdccf-tiles")
            assert (threads, recording) == (1, False)
        assert torch.get_num_threads() == 3
        fresh: list[int] = []
        thread = threading.Thread(target=lambda: fresh.append(torch.get_num_threads()))
        thread.start()
        thread.join()
        assert fresh == [3]
    finally:
        torch.set_num_threads(before)


def test_a_failure_is_the_callers_once_all_have_ended() -> None:
    ended = []

    def work(parts: Sequence[int]) -> None:
        if parts[0] == 0:
            raise ValueError("the first")
        ended.append(parts[0])

    with pytest.raises(ValueError, match="the first"):
        share(work, [0, 1], 2)
    assert ended == [1]
