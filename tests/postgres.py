"""A real PostgreSQL server for one test session, from Debian's package, in a folder of its own."""

import os
import pwd
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Owner = dict[str, Any]
"""Whose process a program is, as `subprocess.run` takes it."""


def binaries() -> Path | None:
    """Where initdb and pg_ctl are: Debian keeps each version apart and off the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if found:
        return found[-1].parent
    on_path = shutil.which("initdb")
    return Path(on_path).resolve().parent if on_path else None


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """Starts a server that listens on a socket in `folder` only, and gives its URI without the database."""
    programs = binaries()
    if programs is None:
        raise FileNotFoundError("initdb")
    data, socket = folder / "data", folder / "socket"
    socket.mkdir(parents=True)
    owner = _hand_over(folder)
    _run(owner, programs / "initdb", "-D", data, "-U", "hdccf", "-A", "trust", "-E", "UTF8", "--no-sync")
    access = data / "pg_hba.conf"
    access.write_text("local all ann scram-sha-256\n" + access.read_text())  # she alone needs a password
    options = f"-c listen_addresses='' -c unix_socket_directories='{socket}' -c fsync=off"
    control = (programs / "pg_ctl", "-D", data, "-w", "-l", folder / "log")
    _run(owner, *control, "-o", options, "start")
    try:
        yield f"postgresql://hdccf@/postgres?host={socket}"
    finally:
        _run(owner, *control, "-m", "immediate", "stop")


def _hand_over(folder: Path) -> Owner:
    """PostgreSQL refuses to run as root: the folder goes to its own user, who runs the programs."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam("postgres")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, account.pw_uid, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _run(owner: Owner, *command: str | Path) -> None:
    # pg_ctl leaves a child that would keep a pipe open for ever, so its output goes nowhere.
    quiet = subprocess.DEVNULL
    subprocess.run([*map(str, command)], check=True, stdout=quiet, stderr=quiet, cwd="/", **owner)
