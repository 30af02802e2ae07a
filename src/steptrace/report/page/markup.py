"""HTML of the report: its templates with autoescape on, the frame of a page, and what its figures mean.

Whatever comes from data is escaped. A section names the columns that it shows, and their declarations explain them.
"""

import re
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Final
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from steptrace import format as fmt
from steptrace.documents.base import Document, shown_columns
from steptrace.documents.finding import Source
from steptrace.documents.sync_counts import SyncChange
from steptrace.documents.syncs import BATCH_COPY, Place, SiteRow, is_batch_copy
from steptrace.documents.variant import VariantResult

#: Templates lie beside the modules that fill them.
TEMPLATES = Path(__file__).parents[1]
#: The page's script: one file a concern, each in a block of its own. A page is complete without it.
SCRIPTS = TEMPLATES / "page" / "script"
#: The page's style sheets, in their order.
STYLES = tuple(TEMPLATES / "page" / name for name in ("page.css", "charts.css", "study.css"))

#: Letters of a name, and of a sentence with its names: a name in a trace can have any length.
_LONGEST_NAME: Final = 1_000
_LONGEST_SENTENCE: Final = 2_000

_INDENT = re.compile(r">\n\s+<")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BACKTICKS = re.compile(r"`([^`]+)`")
_BREAK_AFTER = re.compile(r"([_./=-])(?=[^\s])")
#: A name in a sentence that can be wider than a phone's line: without a chosen place the browser breaks it anywhere.
_LONG_NAME: Final = re.compile(r"[^\s<>&;]{20,}")
_BREAK_IN_NAME: Final = re.compile(r"([_./=,(\[-]|::)(?=[\w\"'.])")
#: The part of a place in a program that must stay on one line: the end of the file's name with the line's number.
_FILE_LINE = re.compile(r"(?<=[.>])\w+:\d+(?![\w:])")
_UNBROKEN = r'<span class="nowrap">\g<0></span>'
#: The space between a figure and its unit, or its sign of percent: a line must not end there.
_BEFORE_UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|(?:[mµn]?s|h|min|B|[KMGT]i?B|[KMGT]?B/s|TFLOP/s)\b))")
_TAG_OR_CODE: Final = re.compile(r"(<code\b.*?</code>|<[^>]*>)", re.DOTALL)


class Html(Markup):
    """A piece of HTML that is safe to embed as it is."""


def badge(word: str, tone: str = "") -> Html:
    """A word on a coloured ground; without a `tone` the word is its class."""
    return Html('<span class="badge {}">{}</span>').format(tone or word.replace(" ", "-"), word)


def inline_code(text: str) -> Markup:
    """Escaped text with `backticks` turned into code.

    A long name may break after its underscores, dots, slashes and opening brackets, and never within the end of
    `folder/file.py:123`. A figure and its unit stay on one line.
    """
    shown = _LONG_NAME.sub(_with_breaks, str(escape(fmt.clipped(text, _LONGEST_SENTENCE))))
    parts = shown.split("`")  # every second one is code, which somebody may copy
    parts[::2] = [_BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", part) for part in parts[::2]]
    shown = "`".join(parts)
    return Markup(_FILE_LINE.sub(_UNBROKEN, _BACKTICKS.sub(r"<code>\1</code>", shown)))


def with_units(text: str) -> Markup:
    """A text, or a piece of HTML, whose figures stay on one line with their units; tags and code stay as they are."""
    parts = _TAG_OR_CODE.split(str(escape(text)))
    parts[::2] = [_BEFORE_UNIT.sub("\N{NO-BREAK SPACE}", part) for part in parts[::2]]
    return Markup("".join(parts))


def _with_breaks(name: re.Match[str]) -> str:
    """The name in a box that moves to the next line as a whole; a name wider than a line breaks inside it."""
    parts = _BREAK_IN_NAME.sub(r"\1<wbr>", name[0])
    # A part of code with spaces is no name: a box must not begin within it.
    return parts if name[0].count("`") % 2 else f'<span class="long">{parts}</span>'


def breakable(name: str) -> Markup:
    """A name that may break after its underscores, dots, hyphens and slashes, and never within `py:123`."""
    shown = str(escape(fmt.clipped(name, _LONGEST_NAME)))
    return Markup(_FILE_LINE.sub(_UNBROKEN, _BREAK_AFTER.sub(r"\1<wbr>", shown)))


def anchor(variant: VariantResult) -> str:
    """The id of a variant's row in the table of all variants: another one for every name."""
    return f"variant-{quote(variant.name, safe='')}"


def place(at: Place | Source) -> str | None:
    """`file:line` with the last two folders of a long path."""
    return None if at.file is None else short_place(at.file, at.line, getattr(at, "function", None))


def short_place(file: str, line: int | None, function: str | None = None) -> str:
    """`file:line` with the last two folders of a long path; without a line the file, and whether it is its own code."""
    parts = Path(file).parts
    return fmt.place(file if len(parts) <= 3 else "…/" + "/".join(parts[-3:]), line, function)


def unplaced(site: SiteRow | SyncChange) -> str:
    """The words for the place of a sync that has no line of the program."""
    return BATCH_COPY if is_batch_copy(site.file, site.label, site.kind) else "line unknown"


@dataclass(frozen=True)
class Definition:
    """A term, and one or two sentences on its meaning."""

    term: str
    meaning: str


def definitions(columns: Sequence[str]) -> list[Definition]:
    """The meanings of columns, each named as `Kind.column`, in their order."""
    return [_definition(name) for name in columns]


@cache
def _definition(name: str) -> Definition:
    kind, _, column = name.partition(".")
    declared = (
        Definition(shown.heading, shown.meaning)
        for document in _kinds(Document)
        if document.__name__ == kind
        for shown in shown_columns(document)
        if shown.name == column
    )
    return next(declared)


def _kinds(kind: type[Document]) -> Iterator[type[Document]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _kinds(subclass)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        code=inline_code,
        ns=fmt.duration_ns,
        ms=fmt.duration_ms,
        place=place,
        name=breakable,
        sentence=fmt.capitalised,
    )
    environment.globals.update(page_globals())
    environment.globals.update(definitions=definitions, fmt=fmt, badge=badge)
    environment.globals.update(not_measured=Markup('<span class="null">not measured</span>'))
    return environment


def page_globals() -> dict[str, Markup]:
    """The page's own script, and the policy that lets a browser run only this script and load nothing else."""
    script = "".join(f"{{\n{_lean(file)}}}\n" for file in sorted(SCRIPTS.glob("*.js")))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    style = "".join(_COMMENT.sub("", _lean(file)) for file in STYLES)
    return {"page_script": Markup(script), "page_policy": Markup(policy), "page_style": Markup(style)}


def _lean(file: Path) -> str:
    """A script or style sheet without indentation and a script's lines of comment: every page carries it."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("// "))


def render(template: str, **data: object) -> Html:
    """A template, such as "study/variants", with its data; without its indentation, which is a tenth of a page."""
    return Html(_INDENT.sub(">\n<", _environment().get_template(f"{template}.html.j2").render(**data)))


def page(title: str, body: str, toc: Sequence[tuple[str, str]], home: str | None = None) -> str:
    """A whole page around `body`; `toc` holds (id, heading) of its sections, `home` the way back to the index."""
    resources = {"title": title, "toc": toc, "home": home}
    return _environment().get_template("page/page.html.j2").render(resources=resources, body=Markup(body))
