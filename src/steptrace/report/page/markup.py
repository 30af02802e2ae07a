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
from urllib.parse import quote

import jinja2
from markupsafe import Markup, escape

from steptrace import format as fmt
from steptrace.documents.base import Document, shown_columns
from steptrace.documents.finding import OF_SEVERAL_LINES, Finding, Source
from steptrace.documents.syncs import BATCH_COPY, Place, Site, is_batch_copy
from steptrace.documents.variant import SyncChange, VariantResult

#: Templates lie beside the modules that fill them.
TEMPLATES = Path(__file__).parents[1]
#: The page's script: one file a concern, each in a block of its own. A page is complete without it.
SCRIPTS = TEMPLATES / "page" / "script"

_INDENT = re.compile(r">\n\s+<")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_BACKTICKS = re.compile(r"`([^`]+)`")
_FIRST_WORD = re.compile(r"[a-z](?=[a-z-]*(?:[ ,]|: ))")
_SENTENCE_END = re.compile(r"(?<=\.) (?=[A-Z`])")
_BREAK_AFTER = re.compile(r"([_./=-])(?=[^\s])")
#: What of a place in a program stays on one line: the end of the file's name with the line's number.
_FILE_LINE = re.compile(r"(?<=[.>])\w+:\d+(?![\w:])")
_UNBROKEN = r'<span class="nowrap">\g<0></span>'


class Html(Markup):
    """A piece of HTML that is safe to embed as it is."""

    def _repr_html_(self) -> str:
        return str(self)


def badge(word: str, tone: str = "") -> Html:
    """A word on a coloured ground; without a `tone` the word is its class."""
    return Html('<span class="badge {}">{}</span>').format(tone or word.replace(" ", "-"), word)


def inline_code(text: str) -> Markup:
    """Escaped text with `backticks` turned into code; no line break within the end of `folder/file.py:123`."""
    return Markup(_FILE_LINE.sub(_UNBROKEN, _BACKTICKS.sub(r"<code>\1</code>", str(escape(text)))))


def sentence(text: str) -> str:
    """The text with a capital at its start, unless it starts with a name: of a file, an operator, a variant."""
    return _FIRST_WORD.sub(lambda first: first[0].upper(), text, count=1) if _FIRST_WORD.match(text) else text


def breakable(name: str) -> Markup:
    """A name that may break after its underscores, dots, hyphens and slashes, and never within `py:123`."""
    return Markup(_FILE_LINE.sub(_UNBROKEN, _BREAK_AFTER.sub(r"\1<wbr>", str(escape(name)))))


def anchor(variant: VariantResult) -> str:
    """The id of a variant's row in the table of all variants: another one for every name."""
    return f"variant-{quote(variant.name, safe='')}"


def first_sentence(text: str) -> tuple[str, str]:
    """A text's first sentence and the rest of it, which may be empty."""
    first, _, rest = _SENTENCE_END.sub("\n", text, count=1).partition("\n")
    return first, rest


def gain(finding: Finding) -> str:
    """What acting on a finding saves at most; empty where that is not known."""
    cost, share = finding.cost_ns_per_step, finding.cost_share
    if cost is None:
        return "" if share is None else f"saves at most {fmt.share(share)} of the trace"
    return f"saves at most {fmt.duration_ns(cost)} per step" + ("" if share is None else f" ({fmt.share(share)})")


def place(at: Place | Source) -> str | None:
    """`file:line` with the last two folders of a long path."""
    return None if at.file is None else short_place(at.file, at.line, getattr(at, "function", None))


def short_place(file: str, line: int | None, function: str | None = None) -> str:
    """`file:line` with the last two folders of a long path; without a line the file, and whether it is its own code."""
    parts = Path(file).parts
    return fmt.place(file if len(parts) <= 3 else "…/" + "/".join(parts[-3:]), line, function)


def line_to_change(finding: Finding) -> str | None:
    """The file's name and the line that a finding's advice is about; None without one, and where there are several."""
    source = finding.source
    if source is None or source.file is None or source.line is None or finding.rule in OF_SEVERAL_LINES:
        return None
    return fmt.place(Path(source.file).name, source.line)


def unplaced(site: Site | SyncChange) -> str:
    """What stands in for a sync's place that has no line of the program."""
    return BATCH_COPY if is_batch_copy(site.file, site.label, site.kind) else "line unknown"


@dataclass(frozen=True)
class Definition:
    """A term as the page shows it and one or two sentences on what it means."""

    term: str
    meaning: str


def definitions(columns: Sequence[str]) -> list[Definition]:
    """The meanings of columns, each named as `Kind.column`, in their order."""
    return [_definition(name) for name in columns]


@cache
def _definition(name: str) -> Definition:
    kind, _, column = name.partition(".")
    declared = (
        Definition(one.heading, one.meaning)
        for document in _kinds(Document)
        if document.__name__ == kind
        for one in shown_columns(document)
        if one.name == column
    )
    return next(declared)


def _kinds(kind: type[Document]) -> Iterator[type[Document]]:
    for one in kind.__subclasses__():
        yield one
        yield from _kinds(one)


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
        first_sentence=first_sentence,
        gain=gain,
        line_to_change=line_to_change,
        ns=fmt.duration_ns,
        place=place,
        name=breakable,
        sentence=sentence,
    )
    environment.globals.update(page_globals())
    environment.globals.update(definitions=definitions, fmt=fmt, badge=badge)
    environment.globals.update(not_measured=Markup('<span class="null">not measured</span>'))
    return environment


def page_globals() -> dict[str, Markup]:
    """The page's own script, and the policy under which a browser runs that one and loads nothing from anywhere."""
    script = "".join(f"{{\n{_lean(file)}}}\n" for file in sorted(SCRIPTS.glob("*.js")))
    digest = b64encode(sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    style = _COMMENT.sub("", _lean(TEMPLATES / "page" / "page.css"))
    return {"page_script": Markup(script), "page_policy": Markup(policy), "page_style": Markup(style)}


def _lean(file: Path) -> str:
    """A script or style sheet without indentation and a script's lines of comment: every page carries it."""
    lines = (line.strip() for line in file.read_text(encoding="utf-8").splitlines())
    return "".join(f"{line}\n" for line in lines if line and not line.startswith("// "))


def render(template: str, **data: object) -> Html:
    """A template, such as "study/variants", with its data; without its indentation, which is a tenth of a page."""
    return Html(_INDENT.sub(">\n<", _environment().get_template(f"{template}.html.j2").render(**data)))


def notebook_styles() -> Html:
    """The page's style sheet for a notebook's outputs in Jupyter, and for nothing else in its window."""
    css = (TEMPLATES / "page" / "page.css").read_text(encoding="utf-8").replace(":root", "&")
    return Html(f"<style>.jp-OutputArea-output {{\n{css}}}</style>")


def page(title: str, body: str, toc: Sequence[tuple[str, str]], home: str | None = None) -> str:
    """A whole page around `body`; `toc` holds (id, heading) of its sections, `home` the way back to the index."""
    resources = {"title": title, "toc": toc, "home": home}
    return _environment().get_template("page/page.html.j2").render(resources=resources, body=Markup(body))
