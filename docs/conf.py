"""How `make docs` builds these pages: Sphinx with MyST, into one folder that loads nothing from elsewhere."""

import re

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


def setup(app: object) -> None:
    """Sphinx calls this first."""
    app.connect("source-read", add_contents)  # type: ignore[attr-defined]
