"""Peers in virtual environments of their own: what they pin would not go with ours, nor with each other's."""

import subprocess
import sys
from pathlib import Path

from hdccf.data.download import cache_home

ENVIRONMENTS = cache_home() / "peers"


def python_with(name: str, requirements: tuple[str, ...]) -> Path:
    """The interpreter of the peer's environment, made at the first call and kept in the cache."""
    folder = ENVIRONMENTS / name
    ready, python = folder / "ready.txt", folder / "bin" / "python"
    wanted = "\n".join(requirements)
    if not ready.exists() or ready.read_text(encoding="utf-8") != wanted:
        print(f"note: making an environment for {name} in {folder}", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True)
        ready.write_text(wanted, encoding="utf-8")
    return python
