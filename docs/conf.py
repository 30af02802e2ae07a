"""How `make docs` builds these pages: Sphinx with MyST, into one folder that loads nothing from elsewhere."""

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
