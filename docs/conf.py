"""How `make docs` builds these pages: Sphinx with MyST, into one folder that loads nothing from elsewhere."""

import re
from pathlib import Path
from typing import Any

project = "steptrace"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "steptrace"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
myst_heading_anchors = 3
# GitHub shows the same files: links lead to files there, and to pages here.
suppress_warnings = ["myst.xref_missing", "misc.highlighting_failure"]


def add_contents(_: object, name: str, source: list[str]) -> None:
    """The lists of links in index.md as the contents of every page: on GitHub they are links, and here, too."""
    if name != "index":
        return
    for caption, links in re.findall(r"^## (.+)\n\n((?:- .+\n)+)", source[0], re.MULTILINE):
        pages = "\n".join(re.findall(r"\]\((.+)\.md\)", links))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{pages}\n```\n"


#: Sphinx calls captions of contents headings without a level, which screen readers need; and the theme lets wide tables
#: and long lines of code scroll, which takes a place for the keyboard to stand.
_ACCESSIBLE = {
    'role="heading">': 'role="heading" aria-level="2">',
    "<pre>": '<pre tabindex="0">',
    '<div class="table-wrapper': '<div tabindex="0" class="table-wrapper',
}


def make_accessible(app: Any, error: Exception | None) -> None:
    """Mend what Sphinx and its theme leave out."""
    for page in () if error else Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        for made, needed in _ACCESSIBLE.items():
            text = text.replace(made, needed)
        page.write_text(text, encoding="utf-8")


def setup(app: Any) -> None:
    """Sphinx calls this first."""
    app.connect("source-read", add_contents)
    app.connect("build-finished", make_accessible)
