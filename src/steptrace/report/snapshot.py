"""The page and the text of memory snapshots."""

from collections.abc import Sequence
from pathlib import PurePath
from typing import Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.documents.base import shown_columns
from steptrace.documents.snapshot import Growth, LiveLine, MemorySnapshots, Origin, OutOfMemory, SnapshotDevice
from steptrace.report.charts.area import bytes_over_time
from steptrace.report.page.markup import page, render
from steptrace.report.page.rows import definitions_of, facts
from steptrace.report.page.section import Explained, note, picture, section
from steptrace.report.page.table import text_table

#: Lines that the page lists, and the terminal; snapshot.json has more.
_ROWS: Final = 40
_LINES: Final = 8


def in_words(document: MemorySnapshots) -> str:
    """The text for the terminal: each GPU's peak with its largest lines, fragmentation, failures, and growth."""
    lines = []
    for snapshot in document.snapshots:
        for device in snapshot.devices:
            lines += [f"{snapshot.path}, GPU {device.device}: {headline(device)}"]
            lines += fmt.columns(("bytes", "blocks", "category", "line"), _rows(_shown(device)[:_LINES]))
            lines += [f"  {_fragmentation(device)}", *(f"  {_failed(failure)}" for failure in device.out_of_memory)]
        if not snapshot.devices:
            lines.append(f"{snapshot.path}: no memory of a GPU")
    if document.growth is not None:
        first, last = document.snapshots[0].path, document.snapshots[-1].path
        total = sum(row.grown_bytes for row in document.growth)
        lines.append(f"growth from {first} to {last}: {_signed(total)} live")
        rows = _growth_rows(document.growth, _LINES)
        lines += fmt.columns(("growth", "before", "now", "category", "line"), rows) if rows else ["  no line differs"]
    return "\n".join(lines)


def headline(device: SnapshotDevice) -> str:
    """The peak, or the live bytes if no history was recorded, in a sentence."""
    if device.peak_bytes is None:
        return f"{fmt.size_bytes(device.allocated_bytes)} live; no history was recorded, so the peak is not known"
    return f"peak {fmt.size_bytes(device.peak_bytes)}, {fmt.size_bytes(device.allocated_bytes)} live at the end"


def answer(document: MemorySnapshots) -> str:
    """Which line holds most at the highest peak, or, of several snapshots, how much grew and where; may be empty."""
    devices = [device for snapshot in document.snapshots for device in snapshot.devices]
    if document.growth is not None:
        total = sum(row.grown_bytes for row in document.growth)
        first, *_, last = _names(document)
        verb = "grew by" if total > 0 else "shrank by"
        changed = f"{verb} {fmt.size_bytes(abs(total))}" if total else "is the same in total"
        text = f"Live memory {changed} from {first} to {last}"
        if document.growth:
            most = largest_changes(document.growth)[0]
            text += f"; the largest change is {_signed(most.grown_bytes)}, {_held(most)}"
        return f"{text}."
    shown = [device for device in devices if _shown(device)]
    if not shown:
        return ""
    device = max(shown, key=_most_live)
    line = _shown(device)[0]
    when = "live at the snapshot" if device.peak_bytes is None else "live at the peak"
    share = fmt.percent(100 * line.bytes / _most_live(device))
    return f"Of {fmt.size_bytes(_most_live(device))} {when}, {share} is one line's: {_held(line)}."


def _most_live(device: SnapshotDevice) -> int:
    return max(device.allocated_bytes if device.peak_bytes is None else device.peak_bytes, 1)


def _held(at: Origin) -> str:
    """What a line holds, and where it is: "activations of net.py:7"."""
    kind = at.category.replace("_", " ")
    return kind if at.file is None else f"{kind} of {fmt.place(at.file, at.line)}"


def largest_changes(growth: Sequence[Growth]) -> list[Growth]:
    """The lines whose live bytes changed most, whether up or down."""
    return sorted(growth, key=lambda row: -abs(row.grown_bytes))


def page_html(document: MemorySnapshots) -> str:
    """The whole page."""
    toc = []
    body = Markup("")
    names = _names(document)
    for number, snapshot in enumerate(document.snapshots):
        for device in snapshot.devices:
            id_ = f"snapshot{number}-gpu{device.device}"
            heading = f"GPU {device.device}" + (f" of {names[number]}" if len(document.snapshots) > 1 else "")
            toc.append((id_, heading))
            body += section(id_, heading, _parts(device))
    if document.growth is not None:
        toc.insert(0, ("growth", "Growth"))
        body = section("growth", "Growth", _growth(document.growth)) + body
    has_growth = document.growth is not None
    title = "What grew, and what is live at the peak" if has_growth else "What is live at the peak"
    first = render("snapshot", title=title, toc=toc, answer=answer(document), headlines=_headlines(document))
    return page("Memory snapshot – steptrace", first + body, toc)


def _headlines(document: MemorySnapshots) -> list[tuple[str, str]]:
    return [
        (f"{name}, GPU {device.device}", headline(device))
        for name, snapshot in zip(_names(document), document.snapshots, strict=True)
        for device in snapshot.devices
    ]


def _names(document: MemorySnapshots) -> list[str]:
    """The names of the files; their paths where two have the same name."""
    paths = [snapshot.path for snapshot in document.snapshots]
    names = [PurePath(path).name for path in paths]
    return names if len(set(names)) == len(names) else paths


def _shown(device: SnapshotDevice) -> Sequence[LiveLine]:
    return device.live if device.peak_bytes is None else device.at_peak


def _parts(device: SnapshotDevice) -> list[Explained]:
    columns = shown_columns(LiveLine)
    when = "at the snapshot" if device.peak_bytes is None else "at the peak"
    shown = _shown(device)
    parts = [
        facts(device),
        picture(_curve(device), "Allocated over the history", "By event. Pale: reserved. The mark: the peak."),
    ]
    if device.peak_by_category:
        rows = [
            (name, fmt.size_bytes(size), fmt.percent(100 * size / (device.peak_bytes or 1)))
            for name, size in device.peak_by_category.items()
        ]
        parts.append(Explained(text_table(("Live at the peak", "Bytes", "Share"), rows)))
    table = text_table(("Bytes", "Blocks", "Category", f"Line, live {when}"), _rows(shown[:_ROWS]))
    parts.append(Explained(table, definitions_of(columns)))
    if len(shown) > _ROWS:
        parts.append(note(f"The {_ROWS} lines with most bytes of {len(shown)} in snapshot.json."))
    if device.agrees is False:
        parts.append(note("The history does not end at the blocks of the snapshot, so the peak is approximate."))
    parts += [note(_failed(failure)) for failure in device.out_of_memory]
    return parts


def _growth(growth: Sequence[Growth]) -> list[Explained]:
    if not growth:
        return [note("Every line holds as many live bytes in the last snapshot as in the first.")]
    table = text_table(("Growth", "Before", "Now", "Category", "Line"), _growth_rows(growth, _ROWS))
    return [Explained(table, definitions_of(shown_columns(Growth)))]


def _growth_rows(growth: Sequence[Growth], most: int) -> list[tuple[str, ...]]:
    """The cells of the lines that changed most."""
    return [
        (
            _signed(row.grown_bytes),
            fmt.size_bytes(row.before_bytes),
            fmt.size_bytes(row.now_bytes),
            row.category,
            _line(row),
        )
        for row in largest_changes(growth)[:most]
    ]


def _rows(lines: Sequence[LiveLine]) -> list[tuple[str, ...]]:
    return [(fmt.size_bytes(line.bytes), str(line.blocks), line.category, _line(line)) for line in lines]


def _line(at: Origin | OutOfMemory) -> str:
    return "-" if at.file is None else fmt.place(at.file, at.line, at.function)


def _fragmentation(device: SnapshotDevice) -> str:
    reserved = fmt.size_bytes(device.reserved_bytes)
    free = fmt.size_bytes(device.free_bytes)
    text = f"reserved {reserved} in {fmt.plural(device.segments, 'segment')}, {free} of it free"
    if device.fragmentation is None:
        return text
    largest = fmt.size_bytes(device.largest_free_bytes)
    stuck = fmt.size_bytes(device.stuck_bytes)
    share = fmt.share(device.fragmentation)
    return f"{text}: largest free block {largest}, fragmentation {share}, {stuck} stuck beside live blocks"


def _failed(failure: OutOfMemory) -> str:
    free = (
        "" if failure.device_free_bytes is None else f", the GPU had {fmt.size_bytes(failure.device_free_bytes)} free"
    )
    held = f"{fmt.size_bytes(failure.allocated_bytes)} allocated, {fmt.size_bytes(failure.reserved_bytes)} reserved"
    return f"Out of memory at {_line(failure)}: {fmt.size_bytes(failure.bytes)} asked for, {held}{free}."


def _signed(size: int) -> str:
    return f"{'-' if size < 0 else '+'}{fmt.size_bytes(abs(size))}"


def _curve(device: SnapshotDevice) -> Markup | None:
    """Allocated and reserved bytes over the events; None with too few points."""
    if device.peak_bytes is None or device.peak_event is None or not device.curve:
        return None
    return bytes_over_time(
        device.curve,
        (device.peak_event, device.peak_bytes),
        (f"event {device.curve[0][0]}", f"event {device.curve[-1][0]}"),
        f"Memory of GPU {device.device}: peak {fmt.size_bytes(device.peak_bytes)} at event {device.peak_event}.",
    )
