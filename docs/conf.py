"""The documentation site: `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).parent
for _folder in ("", "index", "service"):
    sys.path.insert(0, str(DOCS.parent / _folder))

from attend import __version__  # noqa: E402
from docs.generated import GENERATED  # noqa: E402

project = "Attend"
author = "The Attend authors"
copyright = "The Attend authors, Apache-2.0"
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_click"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
smartquotes = False  # they would make a dash of "--data"
default_role = "code"  # docstrings write `name`, as Markdown does
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_type_aliases = {"Json": "Json"}
autodoc_default_options = {"members": True, "undoc-members": False}
napoleon_numpy_docstring = False
napoleon_use_rtype = False

html_theme = "furo"
html_title = f"Attend {__version__}"
html_show_copyright = False
html_theme_options = {"source_directory": "docs/", "navigation_with_keys": True}
templates_path: list[str] = []

# Nothing is loaded from other hosts when a reader opens a page.
html_css_files: list[str] = []


def insert_generated(_app: Sphinx, name: str, source: list[str]) -> None:
    """Put what the code says about itself into the pages of the reference."""
    if name in GENERATED:
        source[0] = source[0].replace("<!-- generated -->", GENERATED[name]())


def setup(app: Sphinx) -> None:
    app.connect("source-read", insert_generated)
