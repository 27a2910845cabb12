"""Fixtures of the service's tests: two runs, a key, and apps of them.

Not a conftest.py, of which there is one already; test files name this one in `pytest_plugins`.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from small_service import KEY, Serving, titled_split

import hdccf
from hdccf.recommend.recommender import Recommender
from hdccf.serving.app import create_app
from hdccf.serving.settings import ServeSettings
from training import quick


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "first"
    hdccf.fit(titled_split(), quick(epochs=2), out=path)
    return path


@pytest.fixture(scope="session")
def known(run: Path) -> Recommender:
    """The first run, as the library opens it."""
    return hdccf.load_run(run)


@pytest.fixture(scope="session")
def other_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same data and shapes, other weights."""
    path = tmp_path_factory.mktemp("runs") / "second"
    hdccf.fit(titled_split(), quick(epochs=1, learning_rate=0.05), seed=3, out=path)
    return path


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    return file


@pytest.fixture
def serving(run: Path) -> Iterator[Serving]:
    """A client of an app with these settings; problems are answers, never exceptions of the test."""
    with ExitStack() as stack:

        def start(path: Path | None = None, **values: Any) -> TestClient:
            app = create_app(path or run, ServeSettings(**values))
            return stack.enter_context(TestClient(app, "http://localhost", raise_server_exceptions=False))

        yield start


@pytest.fixture
def client(serving: Serving) -> TestClient:
    return serving()
