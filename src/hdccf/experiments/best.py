"""Tuned settings as a TOML file: the settings alone, and a first line that says where they come from."""

import json
from pathlib import Path
from typing import Any

from hdccf.errors import ConfigError
from hdccf.files import atomic_file

MARK = "# hdccf tune "


def write_best(path: Path, settings: dict[str, Any], origin: dict[str, Any]) -> None:
    """Atomically. `origin` says by which study, with which budget and value; `read_origin` gives it back."""
    lines = [MARK + json.dumps(origin, ensure_ascii=False)]
    lines += [f"{name} = {_toml(value)}" for name, value in settings.items() if value is not None]
    with atomic_file(path) as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_origin(path: Path) -> dict[str, Any]:
    """What `write_best` was told; nothing where the file is somebody else's."""
    try:
        first = path.read_text(encoding="utf-8").partition("\n")[0]
        found = json.loads(first.removeprefix(MARK)) if first.startswith(MARK) else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def refuse_other(path: Path, study: str, overwrite: bool) -> None:
    """Only what this very study wrote is replaced unasked: said before an hour's work, not after it."""
    if path.exists() and not overwrite and read_origin(path).get("study") != study:
        raise ConfigError(
            f"{path} exists and was not written by the study {study}; give another --out, or --overwrite"
        )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml(each) for each in value)}]"
    # JSON's strings and numbers are TOML's.
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
