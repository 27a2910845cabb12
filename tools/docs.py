"""Builds the documentation site into build/site: python tools/docs.py [FOLDER instead of build]

The pages of docs/ and results/ keep their places relative to each other, so that a link means the same in the
repository and on the site. Command line, REST and settings are written from the code.
"""

import logging
import shutil
import sys
from pathlib import Path

from mkdocs.commands.build import build
from mkdocs.config import load_config
from typer.cli import get_docs_for_click
from typer.main import get_command

ROOT = Path(__file__).parent.parent


def main() -> None:
    logging.basicConfig(format="%(levelname)s: %(message)s")  # warnings, each of which fails the build
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build"
    source, site = folder / "docs", folder / "site"
    stage(source)
    build(load_config(str(ROOT / "mkdocs.yml"), docs_dir=str(source), site_dir=str(site)))
    print(f"built {site / 'index.html'}")


def stage(folder: Path) -> None:
    """The site's source: what the repository has, and the pages that are written from the code."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "reference").mkdir(parents=True)
    for name in ("docs", "results", "CHANGELOG.md", "CONTRIBUTING.md"):
        (folder / name).symlink_to(ROOT / name)
    home = (ROOT / "README.md").read_text("utf-8")
    # A page cannot link to a folder.
    home = home.replace("(docs/decisions)", "(reference/decisions.md)").replace(
        "(results)", "(results/README.md)"
    )
    (folder / "index.md").write_text(home, "utf-8")
    notebooks(folder / "notebooks")
    pages = {"cli": command_line, "rest": rest, "settings": settings, "decisions": decisions}
    for name, text in pages.items():
        (folder / "reference" / f"{name}.md").write_text(text(), "utf-8")


def notebooks(folder: Path) -> None:
    """Notebooks as pages, with the outputs that they were kept with."""
    from nbconvert.exporters import MarkdownExporter
    from nbconvert.writers import FilesWriter

    for path in sorted((ROOT / "examples" / "notebooks").glob("*.ipynb")):
        names = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
        text, resources = MarkdownExporter().from_filename(str(path), resources=names)
        FilesWriter(build_directory=str(folder)).write(text, resources, notebook_name=path.stem)


def command_line() -> str:
    """Every command with its options, from their help."""
    from typer import Context

    from hdccf.cli import app

    command = get_command(app)
    return get_docs_for_click(obj=command, ctx=Context(command), name="hdccf", title="Command line")


def rest() -> str:
    """Every path of the service, from its OpenAPI description."""
    from fastapi import FastAPI

    from hdccf.serving import routes

    app = FastAPI()
    for router in (routes.answers, routes.lookups, routes.operating):
        app.include_router(router)
    lines = [
        "# REST",
        "",
        "The service describes itself at `/openapi.json`. [Serving](../docs/serving.md)",
        "",
    ]
    lines[2] += " has keys, limits and examples."
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            lines += [f"## {method.upper()} {path}", "", operation["summary"] + ".", ""]
            lines += [operation.get("description", ""), ""]
    return "\n".join(lines)


def settings() -> str:
    """Every setting of every model, with its default."""
    from hdccf.models import MODELS, presets_of

    lines = ["# Settings by model", ""]
    lines += ["`hdccf train --model NAME --set setting=value`, or the settings class in Python.", ""]
    for name, entry in MODELS.items():
        lines += [f"## {name}", "", f"{entry.summary}."]
        presets = ", ".join(f"`{preset}`" for preset in presets_of(name))
        lines += ["", f"Presets: {presets}."] if presets else []
        fields = entry.settings.model_fields
        lines += ["", "| setting | default | what it does |", "| --- | --- | --- |"] if fields else [""]
        for setting, field in fields.items():
            about = " ".join((field.description or "").split()).replace("|", "\\|")
            lines.append(f"| `{setting}` | `{field.default}` | {about} |")
        lines.append("")
    return "\n".join(lines)


def decisions() -> str:
    """The list of decision pages."""
    lines = ["# Decisions", ""]
    lines += ["What the paper leaves open or gets wrong, what was chosen, and the measurement.", ""]
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        title = page.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}](../docs/decisions/{page.name})")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
