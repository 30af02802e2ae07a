"""Graphs of compiled code break."""

from collections.abc import Iterator
from typing import Annotated

from steptrace.advice.compiled import instead_of_break
from steptrace.documents.base import Document, field
from steptrace.documents.compilation_rows import GraphBreakRow
from steptrace.documents.compiled import GraphBreak
from steptrace.documents.finding import Source
from steptrace.documents.variant import VariantResult
from steptrace.findings.rule import BaseFigures, Match, Rule, Words, advise, per_variant
from steptrace.findings.window import Window
from steptrace.format import enumeration, place, plural


class Broken(Document, frozen=True, kw_only=True):
    """A line at which graphs end."""

    file: Annotated[str | None, field("Its file.")]
    line: Annotated[int | None, field("Its number.")]
    code: Annotated[str | None, field("Its text.")]
    compilations: Annotated[
        int | None, field("In how many compilations a graph ended there; null if that is predicted and not measured.")
    ]

    @property
    def place(self) -> str:
        """The line in words."""
        return "an unknown line" if self.file is None or self.line is None else place(self.file, self.line)


class Figures(BaseFigures, frozen=True, kw_only=True):
    """Graph breaks for one reason."""

    kind: Annotated[str, field("Dynamo's own name of the reason.")]
    lines: Annotated[tuple[Broken, ...], field("The lines, in the order in which they were compiled.")]
    hints: Annotated[str | None, field("What PyTorch proposes instead, in its words.")]


def _find(window: Window) -> Iterator[Match[Figures]]:
    by_kind: dict[str, list[GraphBreakRow]] = {}
    for row in window.entry.graph_breaks:
        if row.by_pytorch:  # the program cannot change that line
            continue
        by_kind.setdefault(row.kind, []).append(row)
    for kind, rows in by_kind.items():
        first = rows[0]
        lines = tuple(
            Broken(file=line.file, line=line.line, code=line.code, compilations=line.compilations) for line in rows
        )
        yield Match(
            severity="warning",
            figures=Figures(
                kind=kind,
                lines=lines,
                hints=first.hints,
            ),
            source=Source(file=first.file, line=first.line, function=first.function, code=first.code),
        )


def _find_predicted(variant: VariantResult) -> Iterator[Match[Figures]]:
    if variant.compiled is None:
        return
    by_kind: dict[str, list[GraphBreak]] = {}
    for graph_break in variant.compiled.predicted_breaks:
        by_kind.setdefault(graph_break.kind, []).append(graph_break)
    for kind, breaks in by_kind.items():
        first = breaks[0]
        lines = tuple(
            Broken(file=graph_break.file, line=graph_break.line, code=graph_break.code, compilations=None)
            for graph_break in breaks
        )
        yield Match(
            severity="warning",
            figures=Figures(kind=kind, lines=lines, hints=first.hints),
            source=Source(file=first.file, line=first.line, function=None, code=first.code),
        )


def _words(figures: Figures) -> Words:
    places = enumeration([line.place for line in figures.lines])
    what = "a graph of compiled code breaks" if len(figures.lines) == 1 else "graphs of compiled code break"
    evidence = [f"PyTorch's name of the reason: {figures.kind}"]
    for line in figures.lines:
        code = f"`{line.code}`, " if line.code else ""
        seen = "predicted" if line.compilations is None else f"in {plural(line.compilations, 'compilation')}"
        evidence.append(f"{line.place}: {code}{seen}")
    return Words(f"{what} at {places}", tuple(evidence), instead_of_break(figures.kind, figures.hints))


RULE: Rule[Figures] = Rule(
    name="graph_breaks",
    topic="compute",
    figures=Figures,
    told_apart_by=("kind",),
    words=_words,
    in_trace=_find,
    in_study=per_variant(_find_predicted),
    condition="torch.compile ended a graph early, by the record beside the trace, or by the prediction where no run "
    "compiled anything",
    source="ours: every graph break is listed; torch.compile(fullgraph=True) refuses them all",
    advice=advise("Move the line out of the compiled code, or compile the parts before and behind it by themselves."),
    counter_check="Compile with fullgraph=True: it fails at the first graph break that is left. Compare step times: "
    "a graph break outside of the inner loop may cost little.",
    for_several_lines=True,
)
