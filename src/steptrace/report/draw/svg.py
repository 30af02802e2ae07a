"""SVG for the pictures that are no charts: boxes with names and tooltips, coloured by the page's style sheet."""

from collections.abc import Iterable, Mapping

from markupsafe import Markup, escape


class InlineSvg(Markup):
    """An `<svg>` element that a notebook shows and a page embeds."""

    def _repr_html_(self) -> str:
        return str(self)


def graph(kind: str, drawn: str, height: int, alt: str, legend: Iterable[str], **data: str) -> InlineSvg:
    """A picture as wide as the page, below its legend of (already rendered) keys; `kind` names its classes.

    `data` is what the page's script has to know, as data attributes.
    """
    head = f'class="{kind}" role="img" aria-label="{escape(alt)}" width="100%" height="{height}"'
    head += "".join(f" data-{name}={quoted(value)}" for name, value in data.items())
    return InlineSvg(
        f'<div class="{kind}-graph"><div class="flame-bar"><span class="legend">{"".join(legend)}</span></div>'
        f"<svg {head}>{drawn}</svg></div>"
    )


def quoted(value: str) -> Markup:
    """An attribute's value in single quotes: JSON has so many double ones that escaping them makes a page larger."""
    escaped = value.replace("&", "&amp;").replace("<", "&lt;").replace("'", "&#39;")
    return Markup(f"'{escaped}'")


def legend(names: Mapping[str, str], used: Iterable[str]) -> list[str]:
    """The keys of those kinds of box that are used, in the order of `names`."""
    found = set(used)
    return [f'<span class="key {kind}">{name}</span>' for kind, name in names.items() if kind in found]


def text(place: str, words: str) -> str:
    """Words at a place, such as `x="4" y="12"`."""
    return f"<text {place}>{escape(words)}</text>"


def title(words: str) -> str:
    """The tooltip of the element that it is put into."""
    return f"<title>{escape(words)}</title>"


def shorten(name: str, most: int) -> str:
    """A name of at most `most` letters."""
    return name if len(name) <= most else f"{name[: most - 1]}…"
