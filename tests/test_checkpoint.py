"""Checkpoints: what is written comes back bit for bit, failures leave what was there, nothing is executed."""

import errno
import os
import re
import resource
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from hdccf import checkpoint
from hdccf.config import TrainingSettings
from hdccf.errors import RunError
from hdccf.training.optim import OPTIMIZERS, Stepper

SOURCE = Path(checkpoint.__file__).parent


def some_tensors() -> dict[str, torch.Tensor]:
    table = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    return {
        "table": table,
        "same": table,  # two names for one memory
        "turned": table.T,
        "double": table.double() / 3,
        "number": torch.tensor(3),
        "salt": torch.tensor((1 << 62) - 1),
        "empty": torch.zeros(0, 4),
        "odd": torch.tensor([torch.inf, -torch.inf, 5e-324], dtype=torch.float64),
    }


def test_tensors_and_facts_come_back_bit_for_bit(tmp_path: Path) -> None:
    path, facts = tmp_path / "a.safetensors", {"third": 1 / 3, "none": None, "nested": {"é": [1, 2]}}
    checkpoint.save(path, some_tensors(), facts)
    tensors, found = checkpoint.load(path)
    assert found == facts
    for name, tensor in some_tensors().items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].equal(tensor)
    assert [child.name for child in tmp_path.iterdir()] == ["a.safetensors"]


def test_equal_content_gives_equal_files(tmp_path: Path) -> None:
    facts = {"b": 1, "a": {"d": 2, "c": 3}}
    for number in range(5):
        checkpoint.save(tmp_path / str(number), some_tensors(), facts)
    assert len({file.read_bytes() for file in tmp_path.iterdir()}) == 1


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
@pytest.mark.parametrize("sparse", [False, True])
def test_an_optimizer_goes_on_as_if_it_had_not_been_saved(name: str, sparse: bool, tmp_path: Path) -> None:
    settings = TrainingSettings(optimizer=name, learning_rate=0.01, sparse_updates=sparse)  # type: ignore[arg-type]

    def started() -> tuple[list[nn.Parameter], Stepper]:
        generator = torch.Generator().manual_seed(0)
        made = [nn.Parameter(torch.randn(6, 3, generator=generator)) for _ in range(3)]
        return made, Stepper(made[:2], settings)

    def train(made: list[nn.Parameter], stepper: Stepper, steps: range) -> None:
        for step in steps:
            rows = nn.functional.embedding(torch.tensor([step, step + 1]), made[0], sparse=sparse)
            stepper.step((rows @ made[1].T).square().sum())

    whole, stepper = started()
    train(whole, stepper, range(4))
    first, stepper = started()
    train(first, stepper, range(2))
    tensors, numbers = {f"p{k}": p for k, p in enumerate(first)}, {}
    for kind, optimizer in stepper.optimizers.items():
        more, facts = checkpoint.pack_optimizer(optimizer, kind)
        tensors.update(more)  # type: ignore[arg-type]
        numbers.update(facts)
    checkpoint.save(tmp_path / "a", tensors, numbers)  # type: ignore[arg-type]
    loaded, facts = checkpoint.load(tmp_path / "a")
    second, stepper = started()
    for k, parameter in enumerate(second):
        parameter.data = loaded[f"p{k}"]
    for kind, optimizer in stepper.optimizers.items():
        checkpoint.unpack_optimizer(optimizer, kind, loaded, facts)
    train(second, stepper, range(2, 4))
    for a, b in zip(whole, second, strict=True):
        assert a.equal(b)


def full_disk(*_: Any, **__: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def full_disk_as_safetensors_says_it(*_: Any, **__: Any) -> None:
    raise safetensors.SafetensorError(f"Error while serializing: I/O error: {os.strerror(errno.ENOSPC)}")


@pytest.mark.parametrize("failure", [full_disk, full_disk_as_safetensors_says_it])
def test_a_full_disk_leaves_the_last_good_one(
    failure: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.safetensors"
    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, "save_file", failure)
        with pytest.raises(
            RunError,
            match=r"^the disk is full, so a\.safetensors could not be written: make room and train again$",
        ):
            checkpoint.save(path, some_tensors(), {"try": 0})
    assert not list(tmp_path.iterdir())
    checkpoint.save(path, some_tensors(), {"try": 1})
    monkeypatch.setattr(checkpoint, "save_file", failure)
    with pytest.raises(RunError, match=r"the last good one is still .*a\.safetensors: make room and resume$"):
        checkpoint.save(path, some_tensors(), {"try": 2})
    assert checkpoint.load(path)[1] == {"try": 1}
    assert [child.name for child in tmp_path.iterdir()] == ["a.safetensors"]


def test_a_file_that_the_system_cuts_off_leaves_the_last_good_one(tmp_path: Path) -> None:
    """A real failure in the middle of writing: no file may grow beyond 100 kB."""
    path = tmp_path / "a.safetensors"
    checkpoint.save(path, some_tensors(), {"try": 1})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(RunError, match=r"could not be written \(.*\); check the folder and resume$"):
            checkpoint.save(path, {"large": torch.zeros(100_000)}, {"try": 2})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert checkpoint.load(path)[1] == {"try": 1}
    assert [child.name for child in tmp_path.iterdir()] == ["a.safetensors"]


def test_what_cannot_be_read_is_told_in_one_line(tmp_path: Path) -> None:
    good = tmp_path / "good"
    checkpoint.save(good, some_tensors(), {})
    cut = tmp_path / "cut"
    cut.write_bytes(good.read_bytes()[:-5])
    flipped = tmp_path / "flipped"
    flipped.write_bytes(good.read_bytes()[:-5] + bytes([good.read_bytes()[-5] ^ 1]) + good.read_bytes()[-4:])
    other = tmp_path / "other"
    safetensors.torch.save_file({"a": torch.zeros(1)}, other)
    newer = tmp_path / "newer"
    safetensors.torch.save_file({"a": torch.zeros(1)}, newer, {"hdccf": '{"version": 9, "facts": {}}'})
    bare = tmp_path / "bare"
    safetensors.torch.save_file({"a": torch.zeros(1)}, bare, {"hdccf": '{"version": 1'})
    text = tmp_path / "text"
    text.write_text("not a checkpoint at all")
    for path, message in (
        (tmp_path / "none", "does not exist"),
        (cut, "is damaged"),
        (flipped, "is damaged: its tensors are not those that were written; train again"),
        (text, "is damaged"),
        (other, "is not a checkpoint of hdccf"),
        (newer, "has format version 9; this hdccf reads 1"),
        (bare, "is not a checkpoint of hdccf"),
    ):
        with pytest.raises(RunError, match=re.escape(message)) as caught:
            checkpoint.load(path)
        assert "\n" not in str(caught.value)


def test_weights_of_another_shape_are_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"^best has the weights of another model or other data; train again$"):
        checkpoint.fill(nn.Linear(2, 2), {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)}, Path("best"))


def test_nothing_that_executes_is_ever_used_to_read() -> None:
    """No pickle, and nothing of the libraries at hand that reads one, anywhere in the package."""
    dangerous = re.compile(
        r"\b(?:import|from)\s+(?:pickle|cPickle|dill|joblib|cloudpickle|shelve|marshal)\b"
        r"|torch\.load\(|torch\.save\(|read_pickle|allow_pickle\s*=\s*True|np\.load\(|\beval\(|\bexec\("
    )
    found = [
        f"{file.relative_to(SOURCE)}: {line}"
        for file in sorted(SOURCE.rglob("*.py"))
        for line in file.read_text(encoding="utf-8").splitlines()
        if dangerous.search(line)
    ]
    assert found == []
