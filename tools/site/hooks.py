"""Hooks of mkdocs: the site has the repository's pages under the paths that they have there, so links need no change.

Pages of docs/ lose that folder in their address. The references of C, C++ and Python are written here.
"""

from __future__ import annotations

from pathlib import Path

import headers
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
# Pages, and what pages link to.
PAGES = ["*.md", "docs/**/*.md", "src/README.md", "bench/**/*.md", "examples/README.md"]
OTHERS = ["LICENSE", "src/layers.txt", "docs/assets/*", "bench/results/*", "bench/torch/run.py", "tools/site/site.css"]
PYTHON_PAGE = "docs/reference/api/python.md"
MODULES = ["vpmm", "vpmm.torch", "vpmm.cupy", "vpmm.rmm", "vpmm.cuda_core", "vpmm.dask"]


def address(path: str, *, is_page: bool) -> str:
    """Where on the site a file of the repository lies."""
    path = path.removeprefix("docs/") if path != "docs/README.md" else "guides/README.md"
    if not is_page:
        return path
    folder, _, name = path.removesuffix(".md").rpartition("/")
    parts = [folder, "" if name == "README" else name, "index.html"]
    return "/".join(part for part in parts if part)


def site_file(path: str, config: MkDocsConfig, text: str | None = None) -> File:
    """A file of the repository, or a page with that text."""
    is_page = text is not None or path.endswith(".md")
    file = File(path, str(ROOT), config.site_dir, True, dest_uri=address(path, is_page=is_page))
    if text is not None:
        file.content_string = text
    return file


def python_reference() -> str:
    return "# Python: every function\n\n" + "".join(f"::: {module}\n\n" for module in MODULES)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    of_theme = [file for file in files if file.src_dir != config.docs_dir]
    paths = sorted({str(path.relative_to(ROOT)) for pattern in PAGES + OTHERS for path in ROOT.glob(pattern)})
    pages = [site_file(path, config) for path in paths]
    written = {PYTHON_PAGE: python_reference(), **headers.pages()}
    return Files([*of_theme, *pages, *(site_file(path, config, text) for path, text in written.items())])
