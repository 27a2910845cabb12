"""Settings of the service, from a TOML file and the options of `hdccf serve` over it."""

import ipaddress
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from hdccf.config import Options
from hdccf.errors import ConfigError

KEY_HEADER = "X-API-Key"
_SHORTEST_KEY = 16


class ServeSettings(Options):
    """How to serve."""

    host: str = "127.0.0.1"
    """Where to listen: 127.0.0.1 is reached from this machine only, 0.0.0.0 from everywhere."""
    port: int = Field(default=8000, ge=0, le=65535)
    """0 takes a free one and says which."""
    api_key_file: Path | None = None
    """Ask for the key that is in this file, in X-API-Key; health and the page's own files stay open."""
    allowed_hosts: tuple[str, ...] = ()
    """Further names that requests may give as their host, as recs.example, or * for all; repeat for more."""
    cors_origins: tuple[str, ...] = ()
    """Pages from here may ask in a browser, as https://shop.example, or * for all; repeat for more."""
    watch: bool = False
    """Take a new model when the run's weights change; SIGHUP does it once."""
    watch_seconds: float = Field(default=2.0, gt=0)
    """How often to look."""
    threads: int = Field(default=2, ge=1, le=64)
    """Requests that are scored at the same time; as many as there are processors is right."""
    waiting: int = Field(default=64, ge=0)
    """Requests that may wait for a thread; more are refused (503)."""
    timeout_seconds: float = Field(default=10.0, gt=0)
    """What an answer may take, and a head and a body to arrive; then there is a 504, or a 408."""
    shutdown_seconds: int = Field(default=10, ge=1)
    """How long requests under way may take to end when the server is stopped."""
    max_body_bytes: int = Field(default=1 << 20, ge=1024)
    """Larger bodies are refused (413) before they are read."""
    events: Path | None = None
    """Take events (POST /v1/events) and keep them in this file, JSON Lines; without it they are refused."""
    items: Path | None = None
    """Take items (POST /v1/items) and keep them in this file, JSON Lines; without it they are refused. The
    run needs item features (hdccf items)."""
    max_events: int = Field(default=1_000_000, ge=1)
    """Events that the file may hold; more are refused (507) until a new file is started."""
    index_above: int | None = Field(default=None, ge=0)
    """With more items than this an approximate index proposes them; needs the extra `index`."""

    @model_validator(mode="after")
    def _origins_are_origins(self) -> Self:
        for origin in self.cors_origins:
            if origin != "*" and (not origin.startswith(("http://", "https://")) or origin.count("/") != 2):
                raise ValueError(
                    f"cors_origins has {origin!r}, which is no origin; write it as https://shop.example, "
                    'without a path, or "*" for all'
                )
        return self

    @property
    def is_local(self) -> bool:
        """Whether only this machine can connect."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def allows_host(self, header: str) -> bool:
        """Whether a request may name this host: a known name, or an address, which no DNS can rebind."""
        known = {"", "localhost", *(name.lower() for name in (self.host, *self.allowed_hosts))}
        try:
            name = (urlsplit(f"//{header}").hostname or "").rstrip(".")
            return "*" in known or name in known or bool(ipaddress.ip_address(name))
        except ValueError:
            return False

    def api_key(self) -> str | None:
        """The key, read from its file; None where none is asked for."""
        if self.api_key_file is None:
            return None
        try:
            key = self.api_key_file.read_text(encoding="ascii").strip()
        except (OSError, ValueError) as cause:
            raise ConfigError(
                f"the key cannot be read from {self.api_key_file} ({cause}); give a text file of one line"
            ) from cause
        if len(key) < _SHORTEST_KEY or not key.isprintable() or " " in key:
            raise ConfigError(
                f"{self.api_key_file} holds no usable key; give one line of at least {_SHORTEST_KEY} letters "
                "and digits, as from: openssl rand -hex 32"
            )
        return key
