"""SVG as text: every element of every picture is written here.

A chart is a `drawing.Drawing`, in pixels and scaled as a whole. What is stretched to the width of a page or a column
while its letters keep their size (the lanes of a step, cells of tables) has its elements placed in percent.
"""

from markupsafe import Markup, escape


class InlineSvg(Markup):
    """An `<svg>` element that a notebook shows and a page embeds."""

    def _repr_html_(self) -> str:
        return str(self)


def image(kind: str, size: str, drawn: str, alt: str) -> InlineSvg:
    """A whole picture: its class, the attributes of its size, what it holds, and what it shows in words."""
    return InlineSvg(element("svg", f'class="{kind}" role="img" aria-label="{escape(alt)}" {size}', drawn))


def element(name: str, attributes: str, inside: str = "") -> str:
    """An element with its attributes, such as `x="4" width="10%"`, and what is inside it."""
    return f"<{name} {attributes}>{inside}</{name}>" if inside else f"<{name} {attributes}/>"


def text(place: str, words: str) -> str:
    """Words at a place, such as `x="4" y="12"`."""
    return element("text", place, str(escape(words)))


def title(words: str) -> str:
    """The tooltip of the element that it is put into."""
    return f"<title>{escape(words)}</title>"
