"""The section "Inside the loss": the labels that a loss sets around its operations."""

from collections.abc import Mapping, Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.report.draw.bars import Part
from steptrace.report.page.markup import Html, render
from steptrace.report.study.load import loss_sections as sections_of_loss
from steptrace.report.study.model import MANY


def loss_sections(study: Comparison) -> Html:
    """The labelled sections inside the loss, variant by variant: host time, and GPU time where there is a GPU."""
    host = _section_table("Host time", {v.name: sections_of_loss(v.sections_ms) for v in study.variants})
    device = _section_table("GPU time", {v.name: sections_of_loss(v.sections_device_ms) for v in study.variants})
    return render("study/loss_sections", study=study, tables=[table for table in (host, device) if table is not None])


def _section_table(title: str, parts: Mapping[str, Sequence[Part]]) -> dict[str, object] | None:
    """One table of sections by variants, turned round where the variants are many: its head, rows of cells, unit.

    A cell is None where a variant has no such section, and "not measured" where it has no sections at all.
    """
    labels = list(dict.fromkeys(part.label for found in parts.values() for part in found))
    if not labels:
        return None
    longest = max(part.ms for found in parts.values() for part in found)
    cells: dict[tuple[str, str], float | str | None] = {}
    for name, found in parts.items():
        times = {part.label: part.ms for part in found}
        cells.update({(name, label): times.get(label) if times else fmt.NOT_MEASURED for label in labels})
    many = len(parts) > MANY
    names = list(parts)
    rows = [(n, [cells[n, label] for label in labels]) for n in names]
    if not many:
        rows = [(label, [cells[n, label] for n in names]) for label in labels]
    head = labels if many else names
    return {"title": title, "head": head, "rows": rows, "longest": longest, "unit": fmt.unit_for_ms([longest])}
