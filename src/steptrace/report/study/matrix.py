"""A matrix as a picture: the step times of its variants, as lines over the matrix's values, and in one small table."""

import re
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

import msgspec

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.documents.estimate import PairedDifference
from steptrace.documents.variant import VariantResult
from steptrace.findings.estimated import estimate_of, estimated_gpus, leads
from steptrace.findings.matrix import axes
from steptrace.findings.removals import removals_of_answer
from steptrace.findings.sections import LEAST_RATIO, matrix_section, turn
from steptrace.report.charts.lines import Point, Series, lines, measured_point, scale_of
from steptrace.report.page.markup import Html, breakable
from steptrace.report.page.section import wide_picture
from steptrace.report.page.table import text_table
from steptrace.words.cells import cell_words, last_name
from steptrace.words.estimate import uncovered_words

#: Pictures for the values of other keys, and lines of one picture.
_MOST_PICTURES: Final = 4
_MOST_LINES: Final = 10
#: The beginning of the names of PyTorch's own operators. The only assumed ones among them are copies with the host.
_OF_PYTORCH: Final = ("aten.", "prims.")
#: Operators without an estimate that are named.
_MOST_MISSING: Final = 3
_RATIO: Final = Html('{}<span class="note">{}</span>')


def is_matrix(study: Comparison) -> bool:
    """Whether the variants are those of a matrix with more than one value."""
    return bool(axes(study))


def matrix(study: Comparison) -> Html:
    """A picture for each combination of the other keys' values, over the key with most values; measured times below.

    Where estimates lead, the step times of this machine's CPU are left to `cells_table`.
    """
    keys = axes(study)
    across, other_axes = _across(keys)
    html = Html("")
    for values in list(product(*(keys[key] for key in other_axes)))[:_MOST_PICTURES]:
        fixed = dict(zip(other_axes, values, strict=True))
        html += _picture(study, across, keys[across], fixed)
        html += _saved_picture(study, across, keys[across], fixed)
        html += _section_picture(study, across, keys[across], fixed)
    return html if leads(study) else html + cells_table(study)


def _across(keys: Mapping[str, Sequence[str]]) -> tuple[str, list[str]]:
    """The key with most values, which pictures go over, and the other keys."""
    across = max(keys, key=lambda key: len(keys[key]))
    return across, [key for key in keys if key != across]


def with_shown_names(study: Comparison) -> Comparison:
    """The study as its page shows it: a matrix's variants are named by their entry in the study's file and their cell.

    Such a name, "every_step (batch_size 2)", replaces `every_step__batch_size-2` alone or in backticks. Paths keep it.
    """
    names = {
        variant.name: f"{variant.entry} ({cell_words(variant.cell)})"
        for variant in study.variants
        if variant.cell and variant.entry is not None
    }
    if not names:
        return study
    in_text = re.compile(f"`({'|'.join(map(re.escape, names))})`")

    def renamed(value: Any) -> Any:
        if isinstance(value, str):
            return names.get(value) or in_text.sub(lambda match: f"`{names[match[1]]}`", value)
        if isinstance(value, Mapping):
            return {renamed(key): renamed(item) for key, item in value.items()}
        return [renamed(item) for item in value] if isinstance(value, list | tuple) else value

    return msgspec.convert(renamed(msgspec.to_builtins(study)), Comparison)


def _entries(study: Comparison) -> list[str]:
    return list(dict.fromkeys(variant.entry or variant.name for variant in study.variants))


def _at(study: Comparison, entry: str, cell: Mapping[str, str]) -> VariantResult | None:
    """The variant of an entry of the study's file in a cell."""
    return next(
        (
            variant
            for variant in study.variants
            if (variant.entry or variant.name) == entry
            and all(variant.cell.get(key) == value for key, value in cell.items())
        ),
        None,
    )


def _picture(study: Comparison, across: str, columns: Sequence[str], fixed: Mapping[str, str]) -> Html:
    entries = _entries(study)[:_MOST_LINES]
    series = [
        Series(entry, [_point(study, _at(study, entry, {**fixed, across: value})) for value in columns])
        for entry in entries
    ]
    scale = scale_of(series)
    if scale is None:
        return Html("")
    gpu = f", estimated for {estimated_gpus(study)[0]}" if leads(study) else ""
    title = f"Step time over {last_name(across)}{gpu}" + (f", {cell_words(fixed)}" if fixed else "")
    drawn = lines(columns, series, scale, f"{title}: a line for each variant.")
    return Html(wide_picture(drawn, title, _not_in(study) if leads(study) else "").html)


def _saved_picture(study: Comparison, across: str, columns: Sequence[str], fixed: Mapping[str, str]) -> Html:
    """The GPU work that variants are estimated to save against their baselines, and the value from which on they save.

    Step times hide it where their bands are wider than the difference. The difference is of the same draws.
    """
    if not leads(study) or removals_of_answer(study):  # the copies of syncs are no work to save
        return Html("")
    gpu = estimated_gpus(study)[0]
    series = []
    notes = []
    for entry in _entries(study)[:_MOST_LINES]:
        row = [_difference(_at(study, entry, {**fixed, across: value}), gpu) for value in columns]
        points = [
            None if pair is None else _saved_point(pair, across, value)
            for pair, value in zip(row, columns, strict=True)
        ]
        if any(point is not None for point in points):
            series.append(Series(entry, points))
            notes.append(_from_where(entry, row, columns, across))
    scale = scale_of(series)
    if scale is None:
        return Html("")
    title = f"GPU work saved per step over {last_name(across)}, estimated for {gpu}"
    title += f", {cell_words(fixed)}" if fixed else ""
    drawn = lines(columns, series, scale, f"{title}: a line for each variant that saves any.")
    return Html(wide_picture(drawn, title, " ".join(notes)).html)


def _difference(variant: VariantResult | None, gpu: str) -> PairedDifference | None:
    estimate = None if variant is None else estimate_of(variant, gpu)
    return None if estimate is None else estimate.difference


def _saved_point(pair: PairedDifference, across: str, value: str) -> Point | None:
    """The middle of the band of the GPU work saved; None where the band holds 0, or the result has none."""
    if pair.gpu_saved_ms is None or pair.gpu_saved_ms[0] <= 0:
        return None
    low, high = pair.gpu_saved_ms
    return Point((low * high) ** 0.5, pair.gpu_saved_ms, f"{last_name(across)} {value}: saves {fmt.band_ms(low, high)}")


def _from_where(entry: str, row: Sequence[PairedDifference | None], columns: Sequence[str], across: str) -> str:
    """The value from which on a variant is estimated to be faster than its baseline at all later values."""
    first = None
    for pair, value in zip(reversed(row), reversed(columns), strict=True):
        if pair is None or not pair.is_faster:
            break
        first = pair, value
    if first is None:
        return f"`{entry}`: at no {last_name(across)} is its step clearly faster than its baseline's."
    pair, value = first
    start = f"{last_name(across)} {value}"
    saved = fmt.band_ms(*pair.saved_ms)
    return f"`{entry}` is estimated to be faster than its baseline from {start} on: it saves {saved} there."


def _not_in(study: Comparison) -> str:
    """Which operators no rule of the estimate covers, and what it assumes of custom operators."""
    gpu = estimated_gpus(study)[0]
    estimates = [estimate for variant in study.variants if (estimate := estimate_of(variant, gpu)) is not None]
    reasons = {
        missing.name.removesuffix(".default"): uncovered_words(missing)
        for estimate in estimates
        for missing in estimate.not_estimated
    }
    notes = []
    if reasons:
        listed = fmt.enumeration([f"`{name}` ({reason})" for name, reason in list(reasons.items())[:_MOST_MISSING]])
        notes.append(f"The estimate has no rule for {listed}: how their time grows is not in this picture.")
    custom = {
        call.name.removesuffix(".default"): uncovered_words(call)
        for estimate in estimates
        for call in estimate.assumed
        if not call.name.startswith(_OF_PYTORCH)
    }
    notes += [f"Assumed of `{name}`: {reason}." for name, reason in list(custom.items())[:_MOST_MISSING]]
    return " ".join(notes)


def _section_picture(study: Comparison, across: str, columns: Sequence[str], fixed: Mapping[str, str]) -> Html:
    """The section that tells the variants of a cell apart, from sync to sync, and the value from which on it does."""
    section = matrix_section(study)
    entries = _entries(study)[:_MOST_LINES]
    rows = {entry: [_at(study, entry, {**fixed, across: value}) for value in columns] for entry in entries}
    if section is None:
        return Html("")
    series = [Series(entry, [_section_point(cell, section) for cell in row]) for entry, row in rows.items()]
    scale = scale_of(series)
    if scale is None:
        return Html("")
    on_cpu = study.environment is None or study.environment.gpu is None
    where = ", on this machine's CPU" if on_cpu else ""
    title = f"{section} from sync to sync{where}, over {last_name(across)}" + (
        f", {cell_words(fixed)}" if fixed else ""
    )
    turns = []
    for row in rows.values():
        baselines = [None if cell is None else study.variant(cell.baseline) for cell in row]
        found = turn(section, row, baselines, across)
        if found is not None and found.value is not None:
            turns.append(
                f"`{section}` of `{found.entry}` is at least {fmt.plain(LEAST_RATIO)} times as fast as that of "
                f"`{found.baseline}` from {last_name(across)} {found.value} on."
            )
    drawn = lines(columns, series, scale, f"{title}: a line for each variant.")
    return Html(wide_picture(drawn, title, " ".join(turns)).html)


def _section_point(variant: VariantResult | None, section: str) -> Point | None:
    ms = None if variant is None or variant.synced_sections_ms is None else variant.synced_sections_ms.get(section)
    if variant is None or ms is None:
        return None
    return Point(ms, None, f"{cell_words(variant.cell)}: {fmt.duration_ms(ms)}")


def _point(study: Comparison, variant: VariantResult | None) -> Point | None:
    """The measured step time with its interval; where estimates lead, the middle of the band with its ends."""
    if variant is None:
        return None
    cell = f"{cell_words(variant.cell)}: "
    if leads(study):
        estimate = estimate_of(variant, estimated_gpus(study)[0])
        if estimate is None or estimate.step_ms is None or estimate.step_ms[0] <= 0:
            return None
        low, high = estimate.step_ms
        return Point((low * high) ** 0.5, estimate.step_ms, f"{cell}{fmt.band_ms(low, high)}")
    return measured_point(variant.step_ms, cell)


def cells_table(study: Comparison) -> Html:
    """Step times: a row for each variant and each combination of the other keys, and a column for each value."""
    keys = axes(study)
    across, other_axes = _across(keys)
    columns = keys[across]
    rows = []
    for values in product(*(keys[key] for key in other_axes)):
        fixed = dict(zip(other_axes, values, strict=True))
        for entry in _entries(study):
            cells = [_cell(_at(study, entry, {**fixed, across: value})) for value in columns]
            rows.append((breakable(entry), *values, *cells))
    heads = ("Variant", *map(last_name, other_axes), *(f"{last_name(across)} {value}" for value in columns))
    return text_table(heads, rows)


def _cell(variant: VariantResult | None) -> str:
    """Its step time, and its ratio to the baseline of the cell."""
    if variant is None or variant.step_ms is None:
        return fmt.NOT_MEASURED if variant is None or variant.status == "ok" else variant.status
    ratio = variant.judged_ratio
    if ratio is None or variant.is_baseline:
        words = "baseline" if variant.is_baseline else ""
    else:
        compared = "" if variant.ratio_per_sample is None else "per sample "
        words = f"{fmt.ratio(ratio.value, ratio.low, ratio.high)} {compared}{ratio.verdict or ''}"
    return _RATIO.format(fmt.duration_ms(variant.step_ms.value), words)
