"""What to do first, as a box near the top of a page: one line a finding, with its details behind the line."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from steptrace import format as fmt
from steptrace.documents.finding import ANSWER, Finding
from steptrace.findings.registry import claim_at_start, is_for_several_lines, with_present_words
from steptrace.report.page.markup import Html, render
from steptrace.words.finding import gain_text


@dataclass(frozen=True)
class _Detail:
    """The claim below a line.

    Attributes:
        variant: the variant that it is about; None where the line names it.
        claim: the claim, a whole sentence.
        gain: what acting on it saves at most; empty where the line says it, or nothing is known.
    """

    variant: str | None
    claim: str
    gain: str


@dataclass(frozen=True)
class _FirstStep:
    """One thing to do.

    Attributes:
        variant: the variant that it is about, named at the start of the line; None where the details name it.
        place: the file's name and the line to change; None without one.
        to_do: what to do, a sentence.
        gain: what it saves at most; empty where the details say it, or nothing is known.
        detail: the claim; None for a study's answer, which the page says above.
        more: the rest of the advice; may be empty.
    """

    variant: str | None
    place: str | None
    to_do: str
    gain: str
    detail: _Detail | None
    more: str


def first_steps_box(
    items: Sequence[Finding],
    *,
    more: int,
    anchor: str | None,
    nothing: str = "",
) -> Html:
    """The box with what to do first.

    Args:
        items: the findings to begin with.
        more: how many findings stand in the section of all findings besides.
        anchor: the id of that section; None without one.
        nothing: why there are no findings; the box is left out if there are none and this is empty.
    """
    alone = len(items) == 1
    return render(
        "page/first",
        steps=[_alone(item) if alone else _beside_others(item) for item in items],
        alone=alone,
        anchor=anchor,
        one_finding=more + len(items) == 1,
        nothing=nothing,
    )


def _alone(item: Finding) -> _FirstStep:
    """The step for the only finding. Its details are open, and show its variant and gain."""
    item = with_present_words(item)
    to_do, more = _advice(item)
    detail = None
    if item.rule != ANSWER:
        claim = item.claim if item.variant else claim_at_start(item)
        detail = _Detail(item.variant, f"{claim}.", fmt.capitalised(gain_text(item)))
    return _FirstStep(variant=None, place=line_to_change(item), to_do=to_do, gain="", detail=detail, more=more)


def _beside_others(item: Finding) -> _FirstStep:
    """The step for one of several findings. Its line shows its variant and gain."""
    item = with_present_words(item)
    to_do, more = _advice(item)
    is_answer = item.rule == ANSWER
    return _FirstStep(
        variant=None if is_answer else item.variant,
        place=line_to_change(item),
        to_do=to_do,
        gain=fmt.capitalised(gain_text(item)) if more or not is_answer else "",
        detail=None if is_answer else _Detail(None, f"{claim_at_start(item)}.", ""),
        more=more,
    )


def _advice(item: Finding) -> tuple[str, str]:
    """What to do in a sentence, and the rest of the advice; the claim where there is no advice."""
    to_do, *more = item.advice_parts or (item.advice,)
    return to_do or claim_at_start(item), " ".join(more)


def line_to_change(finding: Finding) -> str | None:
    """The file's name and the line that a finding's advice is about; None without one, and where there are several."""
    source = finding.source
    if source is None or source.file is None or source.line is None or is_for_several_lines(finding):
        return None
    return fmt.place(Path(source.file).name, source.line)
