"""The documentation site builds without a warning, and no link of it leads nowhere."""

import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

import hdccf

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, str]:
    """The HTML of every page; the build is strict, so that a warning of it is an error here."""
    # Not into build, where another worker may be building.
    folder = tmp_path_factory.mktemp("build")
    command = [sys.executable, str(ROOT / "tools" / "docs.py"), str(folder)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return {page: page.read_text("utf-8") for page in (folder / "site").rglob("*.html")}


def test_every_link_leads_to_a_page_and_nothing_is_fetched_from_elsewhere(pages: dict[Path, str]) -> None:
    checked = 0
    for page, html in pages.items():
        if page.name == "404.html":
            continue
        for target in re.findall(r'<(?:a|img|link|script)\b[^>]*?(?:href|src)="([^"#?]+)', html):
            if target.startswith(("mailto:", "data:")):
                continue
            if target.startswith(("http:", "https:")):
                # A link may lead elsewhere, a script, style or picture may not come from there.
                assert f'src="{target}' not in html, f"{page.name} takes {target}"
                continue
            assert (page.parent / unquote(target)).exists(), f"{page.name} links to {target}"
            checked += 1
    assert checked > 1000


def test_the_reference_has_every_command_path_and_setting(pages: dict[Path, str]) -> None:
    from hdccf.models import MODELS

    reference = {page.stem: html for page, html in pages.items() if page.parent.name == "reference"}
    assert "hdccf data info" in reference["cli"]
    assert "--matmul-precision" in reference["cli"]
    assert "/v1/recommend" in reference["rest"]
    for name, entry in MODELS.items():
        assert f'id="{name}"' in reference["settings"]
        assert all(
            f"<code>{setting}</code>" in reference["settings"] for setting in entry.settings.model_fields
        )
    public = [name for name in hdccf.__all__ if name != "__version__"]
    assert [name for name in public if f'id="hdccf.{name}"' not in reference["api"]] == []
