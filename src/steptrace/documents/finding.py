"""A finding, as it stands in summary.json and comparison.json."""

from typing import Annotated, Any, Final, Literal

import msgspec

from steptrace.documents.base import Document, column, field

#: The rule that gives a study's answer: pages put its finding first.
ANSWER: Final = "which_variant"
#: The rule of the syncs that a GPU would see, where none has measured.
PREDICTED_SYNCS: Final = "predicted_syncs"

Severity = Literal["info", "warning", "high"]
#: The severest first.
SEVERITIES: Final[tuple[Severity, ...]] = ("high", "warning", "info")


class Source(Document, frozen=True, omit_defaults=True):
    """Where in the program, or on which rank, a finding is."""

    file: Annotated[str | None, field("File of the line.")] = None
    line: Annotated[int | None, field("Line in the file.")] = None
    function: Annotated[str | None, field("Function that the line stands in.")] = None
    code: Annotated[str | None, field("Text of the line.")] = None
    rank: Annotated[int | None, field("Rank, of a finding on one among others.")] = None


class Finding(Document, frozen=True):
    """One claim about a comparison or a trace, with its evidence and the check that could refute it."""

    rule: Annotated[str, field("Name of the rule, as in docs/findings.md.")]
    severity: Annotated[Severity, field("How much it matters.")]
    claim: Annotated[str, field("What is the case, in one sentence.")]
    cost_ns_per_step: Annotated[
        int | None,
        column(
            "Saves at most",
            "Upper bound of the time that a perfect remedy saves. Bounds do not add up: one instant can have several "
            "causes. "
            "Sorted by severity, then by bound. A share is of the step, or of a trace without steps.",
        ),
    ]
    source: Annotated[Source | None, field("Line of code, or rank.")]
    evidence: Annotated[tuple[str, ...], field("The figures behind the claim.")]
    advice: Annotated[str, field("What to do, and further explanations.")]
    counter_check: Annotated[str, field("What would show that the claim is wrong.")]
    variant: Annotated[str | None, field("Variant concerned; null for the whole study, or a trace.")]
    cost_share: Annotated[
        float | None, field("The cost as a share of the step, or of the whole trace if it marks no steps.")
    ] = None
    basis: Annotated[str | None, field("Where the rule's thresholds come from.")] = None
    study: Annotated[str | None, field("The study that demonstrates it.")] = None
    condition: Annotated[str | None, field("When the rule fires.")] = None
    figures: Annotated[
        dict[str, Any],
        field("The facts that claim, evidence, advice and counter-check are made of; by rule in docs/findings.md."),
    ] = msgspec.field(default_factory=dict)
    on_path_ns: Annotated[
        float | None,
        field("GPU work on the critical path of a step, if that is less than the cost would be without this limit."),
    ] = None
    ranks: Annotated[
        tuple[int, ...],
        field("Of a finding in several ranks' traces: the ranks that have it. The rest is of the rank in `source`."),
    ] = ()
    advice_parts: Annotated[
        tuple[str, ...],
        field("The advice in parts. The first one says in a sentence what to do. Empty in files of older versions."),
    ] = ()
    profile_slower: Annotated[
        float | None,
        field("Profiled over unprofiled step time, where that is why the finding has no cost."),
    ] = None
