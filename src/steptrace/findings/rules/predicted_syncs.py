"""Syncs that are predicted for a GPU, if no GPU has measured any. Only a GPU can tell what they cost."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Final

from steptrace.advice.replacements import by_replacement, counter_check, replacement, replacement_code
from steptrace.documents.base import field
from steptrace.documents.finding import PREDICTED_SYNCS, Finding, Severity
from steptrace.documents.syncs import PredictedSite, place_of
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import most_waiting
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise, per_variant
from steptrace.findings.sites import source_of
from steptrace.format import plural
from steptrace.words.estimate import most_waiting_in_words

#: The most operations that a finding advises on.
_MOST_ADVICE: Final = 3
#: A sync that comes in one of ten steps or in fewer is read "once in many steps" already, as most advice asks. Chosen,
#: not measured: it is the middle variant of the study `sync_cost`, and what the logging of public programs does.
_RARE_PER_STEP: Final = 0.1


class Figures(BaseFigures, frozen=True, kw_only=True):
    """Predicted syncs of a step."""

    syncs: Annotated[float, field("How many per step, or in `in_steps` steps.")]
    in_steps: Annotated[int | None, field("In so many steps, where none of them comes in each step.")]
    lines: Annotated[int, field("On how many lines.")]
    sites: Annotated[tuple[PredictedSite, ...], field("All places, or all with the same replacement.")]
    same_replacement: Annotated[
        bool, field("Whether `sites` are all places with one replacement, and all others on their lines.")
    ]
    replacement: Annotated[str | None, field("Code of the first one's replacement (advice/replacements.toml).")]
    cost_ms: Annotated[float | None, field("What all waits of a step cost at most by an estimate; null without one.")]
    gpu: Annotated[str | None, field("The GPU of that estimate.")]


def _find(variant: VariantResult) -> Iterator[Match[Figures]]:
    count = variant.syncs.predicted_per_step
    sites = variant.predicted_sites
    if variant.syncs.measured_per_step is not None or not count or not sites:
        return
    most = most_waiting(variant)
    figures = _figures(sites)
    if most is not None:
        figures = _figures(sites, cost_ms=most.ms, gpu=most.gpu)
    yield Match(severity=_severity(sites), figures=figures, source=source_of(sites[0]))


def _severity(sites: Sequence[PredictedSite]) -> Severity:
    """How much the syncs matter: those of rare steps are worth knowing, and nothing to begin with."""
    is_rare = all((site.count_per_step or 0) <= _RARE_PER_STEP for site in sites)
    return "info" if is_rare else "warning"


def _figures(
    sites: Sequence[PredictedSite],
    *,
    same_replacement: bool = False,
    cost_ms: float | None = None,
    gpu: str | None = None,
) -> Figures:
    """The figures of several sites."""
    per_step = sum(site.count_per_step or 0 for site in sites)
    steps = {site.of_steps for site in sites if site.in_steps != site.of_steps and site.every is None}
    in_steps = steps.pop() if len(steps) == 1 else None
    return Figures(
        syncs=per_step if in_steps is None else round(per_step * in_steps),
        in_steps=in_steps,
        lines=len({(site.file, site.line) for site in sites}),
        sites=tuple(sites),
        same_replacement=same_replacement,
        replacement=replacement_code(sites[0]),
        cost_ms=cost_ms,
        gpu=gpu,
    )


def predicted_findings(sites: Iterable[PredictedSite]) -> list[Finding]:
    """A finding for each replacement, with its lines; their cost is not known without a GPU."""
    return [
        RULE.finding(
            Match(
                severity=_severity(group),
                figures=_figures(group, same_replacement=True),
                source=source_of(group[0]),
            )
        )
        for group in _by_line_and_replacement(sites)
    ]


def _by_line_and_replacement(sites: Iterable[PredictedSite]) -> list[list[PredictedSite]]:
    """The sites by their replacement, and each line in one group: the first one that it has a site in."""
    of_line: dict[tuple[str, int], list[PredictedSite]] = {}
    groups = []
    for same in by_replacement(sites):
        group: list[PredictedSite] = []
        for site in same:
            at = None if site.file is None or site.line is None else (site.file, site.line)
            (group if at is None else of_line.setdefault(at, group)).append(site)
        if group:
            groups.append(group)
    return groups


def _words(figures: Figures) -> Words:
    first = figures.sites[0]
    syncs = plural(figures.syncs, "sync")
    often = f"{syncs} per step" if figures.in_steps is None else f"{syncs} in {figures.in_steps} steps"
    if figures.same_replacement:
        places = ", ".join(dict.fromkeys(map(place_of, figures.sites)))
        return Words(f"{often} predicted, at {places}", (), _advice(figures.sites), counter_check(first))
    lines = f" on {figures.lines} lines" if figures.lines > 1 else ""
    cost = "cost not measured"
    if figures.cost_ms is not None and figures.gpu is not None:
        cost = f"all syncs of a step together cost {most_waiting_in_words(figures.cost_ms, figures.gpu)}"
    return Words(
        f"{often} predicted{lines}, first in a step at {place_of(first)}",
        (cost, _predicted(first)),
        _advice(figures.sites),
        counter_check(first),
    )


def _advice(sites: Sequence[PredictedSite]) -> tuple[str, ...]:
    """The advice for the first place, and for places with other operations that need other advice."""
    first = sites[0]
    advice = list(replacement(first) or ())
    other_groups = [group for group in by_replacement(sites) if first not in group]
    for group in other_groups[: _MOST_ADVICE - 1]:
        places = list(dict.fromkeys(map(place_of, group)))
        to_do, *more = replacement(group[0]) or ()
        advice += [to_do if places == [place_of(first)] else f"At {', '.join(places)}: {to_do}", *more]
    return tuple(advice)


def _predicted(site: PredictedSite) -> str:
    code = f"`{site.code}`, " if site.code else ""
    backward = ", in its backward pass" if site.phase == "backward" else ""
    kind = (site.kind or "sync").replace("_", " ")
    return f"{code}{site.counted(f'{kind}{backward}')}"


RULE: Final = Rule(
    name=PREDICTED_SYNCS,
    topic="waiting",
    figures=Figures,
    words=_words,
    in_study=per_variant(_find),
    condition="syncs are predicted for a step, and no GPU has measured them",
    source="ours: every predicted site is listed, and syncs of at most one in ten steps are information; only a GPU "
    "can measure the cost",
    advice=advise("Keep the value on the device, or move the wait to the end of the step."),
    counter_check="Run the study on a GPU: a sync that leaves the GPU busy costs nothing.",
    study="masked_loss",
)
