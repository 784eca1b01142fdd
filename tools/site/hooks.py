# SPDX-License-Identifier: Apache-2.0
"""Hooks of mkdocs: the site has the repository's pages under the paths that they have there, so links need no change.

Pages of docs/ lose that folder in their address. The references of C, C++ and Python are written here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import headers
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
# Pages, and what pages link to.
PAGES = ["*.md", "docs/**/*.md", "docs/tutorials/*.ipynb", "src/README.md", "bench/**/*.md", "examples/README.md"]
OTHERS = [
    *("LICENSE", "src/layers.txt", "tools/site/site.css", "tools/site/site.js"),
    *("docs/assets/*", "bench/results/*", "bench/torch/run.py", "examples/*.py"),
]
NOTEBOOKS = "notebooks"
PYTHON_PAGE = "docs/reference/api/python.md"
MODULES = ["vpmm", "vpmm.torch", "vpmm.cupy", "vpmm.rmm", "vpmm.cuda_core", "vpmm.dask"]


class Page(File):
    """A file that becomes a page, also where its name does not end in .md."""

    def is_documentation_page(self) -> bool:
        return True


def address(path: str) -> str:
    """Where on the site a page of the repository lies."""
    folder, _, name = str(Path(path).with_suffix("")).rpartition("/")
    if path == "docs/README.md":
        folder, name = "guides", "README"
    parts = [folder.removeprefix("docs").removeprefix("/"), "" if name == "README" else name, "index.html"]
    return "/".join(part for part in parts if part)


def page(path: str, config: MkDocsConfig, text: str | None = None) -> File:
    """A page of the repository, or one with that text."""
    file = Page(path, str(ROOT), config.site_dir, True, dest_uri=address(path))
    if path.endswith(".ipynb"):
        text = notebook_text(json.loads((ROOT / path).read_text()))
        text += f"\n[This page as a notebook](../../{NOTEBOOKS}/{Path(path).name})\n"
    if text is not None:
        file.content_string = text
    return file


def other_file(path: str, config: MkDocsConfig) -> File:
    return File(path, str(ROOT), config.site_dir, True, dest_uri=path.removeprefix("docs/"))


def notebook_file(path: str, config: MkDocsConfig) -> File:
    """The notebook itself, beside the page made of it."""
    file = File(f"{NOTEBOOKS}/{Path(path).name}", None, config.site_dir, True)
    file.abs_src_path = str(ROOT / path)
    return file


def notebook_text(notebook: dict[str, Any]) -> str:
    """A notebook as a page: its cells, and below each cell of code what it printed."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
        printed = "".join(text for output in cell.get("outputs", []) for text in output["text"])
        parts.append(f"```{{.text .output}}\n{printed.rstrip()}\n```" if printed else "")
    return "\n\n".join(part for part in parts if part) + "\n"


def python_reference() -> str:
    return "# Python: every function\n\n" + "".join(f"::: {module}\n\n" for module in MODULES)


def paths(patterns: list[str]) -> list[str]:
    return sorted({str(path.relative_to(ROOT)) for pattern in patterns for path in ROOT.glob(pattern)})


def on_files(files: Files, config: MkDocsConfig) -> Files:
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    written = {PYTHON_PAGE: python_reference(), **headers.pages()}
    pages = [page(path, config) for path in paths(PAGES)] + [page(path, config, text) for path, text in written.items()]
    others = [other_file(path, config) for path in paths(OTHERS) if not path.endswith(".md")]
    notebooks = [notebook_file(path, config) for path in paths(["docs/tutorials/*.ipynb"])]
    return Files([*of_theme, *pages, *others, *notebooks])


def on_page_markdown(markdown: str, page: Any, **_: object) -> str:  # noqa: ANN401  a page of mkdocs, the name is taken
    """The first page has no other beside it: its text gets the room."""
    if page.is_homepage:
        page.meta["hide"] = ["navigation"]
    return markdown


def on_post_page(output: str, **_: object) -> str:
    """The theme's search is a dialog without a name."""
    dialog = 'data-md-component="search" role="dialog"'
    return output.replace(dialog, f'{dialog} aria-label="Search"')


on_post_template = on_post_page  # 404.html
