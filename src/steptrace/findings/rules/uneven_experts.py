"""All-to-alls send one rank far more than the others: its experts get more tokens."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Annotated, Final

from steptrace.documents.base import field
from steptrace.documents.subjects.expert_loads import SUBJECT, ExpertLoad
from steptrace.findings.collectives import exposed_transfer_ns
from steptrace.findings.rule import Match, Rule, Threshold, TraceFigures, Words, advise
from steptrace.findings.thresholds import HIGH, NOISE
from steptrace.findings.window import Window
from steptrace.format import count, duration, ratio

_UNEVEN: Final = Threshold(
    1.25, "the capacity factor of Switch Transformers: what is beyond it was dropped there", unit=""
)


class Figures(TraceFigures, frozen=True, kw_only=True):
    """The balance of the all-to-alls of one process group."""

    group: Annotated[str | None, field("Name of the process group.")]
    ranks: Annotated[int, field("Its ranks.")]
    place: Annotated[int, field("Place in it of the rank that gets most.")]
    elements: Annotated[float, field("Elements that it gets.")]
    mean_elements: Annotated[float, field("Elements that a rank gets on average.")]
    exposed_ns: Annotated[float, field("Time of these all-to-alls that no computation hides, without known waiting.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    by_group = defaultdict[str | None, list[ExpertLoad]](list)
    for row in SUBJECT.rows_of(window.entry):
        by_group[row.group].append(row)
    names = () if window.entry.collectives is None else window.entry.collectives.by_name
    for group, rows in by_group.items():
        most = max(rows, key=lambda row: row.elements)
        if most.over_mean < _UNEVEN.value:
            continue
        exposed_ns = sum(
            exposed_transfer_ns(name) for name in names if name.collective == "all_to_all" and name.group == group
        )
        # With equal parts the longest one is as long as the mean one.
        cost_ns = window.per_step(exposed_ns) * (1 - 1 / most.over_mean)
        if window.share(cost_ns) < NOISE.value:
            continue
        yield Match(
            severity="warning" if window.share(cost_ns) >= HIGH.value else "info",
            figures=Figures(
                steps=window.steps,
                step_ns=window.step_ns,
                device_module=window.entry.device_module,
                group=group,
                ranks=len(rows),
                place=most.place,
                elements=window.per_step(most.elements),
                mean_elements=window.per_step(most.elements) / most.over_mean,
                exposed_ns=window.per_step(exposed_ns),
            ),
            cost_ns_per_step=cost_ns,
        )


def _words(figures: Figures) -> Words:
    per = figures.per
    of_group = "" if figures.group is None else f" of process group {figures.group}"
    return Words(
        f"all-to-alls{of_group} send rank {figures.place} of {figures.ranks} "
        f"{ratio(figures.elements / figures.mean_elements)} the mean",
        (
            f"elements {per}: {count(round(figures.elements))}, on average {count(round(figures.mean_elements))}",
            f"{duration(figures.exposed_ns)} of these all-to-alls {per} that no computation hides",
        ),
    )


RULE: Final = Rule(
    name="uneven_experts",
    topic="communication",
    figures=Figures,
    told_apart_by=("group",),
    words=_words,
    in_trace=_find,
    condition="the all-to-alls of a process group send one of its ranks at least {uneven} times the mean, and equal "
    "parts would save at least {least} of the step; a warning from {high} on",
    thresholds={"uneven": _UNEVEN, "least": NOISE, "high": HIGH},
    source="what equal parts save is the exposed time times one less the mean over the largest part",
    advice=advise(
        "Balance the experts: a balancing loss or bias in the router, a capacity for each expert, or a placement "
        "that puts much used experts on different ranks (for embedding tables: by their traffic).",
    ),
    counter_check="Route tokens to experts at random: all-to-alls that stay as long are not slow for their imbalance.",
    gpu_work=True,
)
