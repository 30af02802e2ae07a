"""What the figures of a page mean, in short: a template names those that it shows, in the words of glossary.md."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from steptrace.documents.step_figures import STEP_FIGURES

_GLOSSARY = Path(__file__).with_name("glossary.md")
_WRAPPED = re.compile(r"\n +(?! |- \*\*)")
_ITEM = re.compile(r"^ *- (?:`(?P<key>\w+)` )?\*\*(?P<term>.+?)\*\*: (?P<meaning>.+)$", re.MULTILINE)


@dataclass(frozen=True)
class Definition:
    """A term as the page shows it and one or two sentences on what it means.

    `whole` is what the page of a trace without steps shows instead, where the words speak of steps.
    """

    term: str
    meaning: str
    whole: "Definition | None" = None


@cache
def glossary() -> dict[str, Definition]:
    """Every definition by its key: those of glossary.md and the figures of a step."""
    found = {figure.key: Definition(figure.name, figure.definition) for figure in STEP_FIGURES}
    key = ""
    for item in _ITEM.finditer(_WRAPPED.sub(" ", _GLOSSARY.read_text(encoding="utf-8"))):
        definition = Definition(item["term"], item["meaning"])
        if item["key"]:
            key = item["key"]
            found[key] = definition
        else:
            found[key] = replace(found[key], whole=definition)
    return found


def definitions(keys: Sequence[str], *, steps: bool = True) -> list[Definition]:
    """The definitions of these keys in their order, for pages of what marks steps or of a trace that does not."""
    found = [glossary()[key] for key in keys]
    return found if steps else [definition.whole or definition for definition in found]
