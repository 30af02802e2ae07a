"""SVG as text: every element of every picture is written here, and the pictures that are as wide as the page.

A chart is a `drawing.Drawing`, in pixels and scaled as a whole. What is stretched to the width of a page or a column
while its letters keep their size (flame graphs, timelines, cells of tables) has its elements placed in percent.
"""

from collections.abc import Iterable, Mapping

from markupsafe import Markup, escape


class InlineSvg(Markup):
    """An `<svg>` element that a notebook shows and a page embeds."""

    def _repr_html_(self) -> str:
        return str(self)


def graph(kind: str, drawn: str, height: int, alt: str, legend: Iterable[str]) -> InlineSvg:
    """A picture as wide as the page, below its legend of (already rendered) keys; `kind` names its classes."""
    size = f'width="100%" height="{height}"'
    return InlineSvg(
        f'<div class="{kind}-graph"><div class="graph-bar"><span class="legend">{"".join(legend)}</span></div>'
        f"{image(kind, size, drawn, alt)}</div>"
    )


def image(kind: str, size: str, drawn: str, alt: str) -> InlineSvg:
    """A whole picture: its class, the attributes of its size, what it holds, and what it shows in words."""
    return InlineSvg(element("svg", f'class="{kind}" role="img" aria-label="{escape(alt)}" {size}', drawn))


def element(name: str, attributes: str, inside: str = "") -> str:
    """An element with its attributes, such as `x="4" width="10%"`, and what is inside it."""
    return f"<{name} {attributes}>{inside}</{name}>" if inside else f"<{name} {attributes}/>"


def legend(names: Mapping[str, str], used: Iterable[str]) -> list[str]:
    """The keys of those kinds of box that are used, in the order of `names`."""
    shown = set(used)
    return [f'<span class="key {kind}">{name}</span>' for kind, name in names.items() if kind in shown]


def text(place: str, words: str) -> str:
    """Words at a place, such as `x="4" y="12"`."""
    return element("text", place, str(escape(words)))


def title(words: str) -> str:
    """The tooltip of the element that it is put into."""
    return f"<title>{escape(words)}</title>"
