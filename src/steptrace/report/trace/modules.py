"""The section on modules: an icicle of the model, and a table of repeated layers."""

from collections.abc import Mapping, Sequence
from typing import Final

from markupsafe import Markup

from steptrace import format as fmt
from steptrace.documents.subjects.modules import SUBJECT, ModuleTime
from steptrace.report.charts.icicle import Branch, icicle
from steptrace.report.charts.palette import colour_of
from steptrace.report.page.markup import definitions
from steptrace.report.page.rows import listing
from steptrace.report.page.section import Explained, Parts, colour_keys, folded, note
from steptrace.report.trace.registry import section_of
from steptrace.report.trace.view import TraceView
from steptrace.words.pictures import module_label, module_text, modules_note

#: How boxes look: modules are plain, so that the lines in them stand out.
_FILLS: Final[Mapping[str, str]] = {"module": "band", "line": "grey", "rest": "rule"}


@section_of("modules")
def modules(view: TraceView) -> Parts | None:
    """The time of modules and their lines."""
    rows = SUBJECT.rows_of(view.trace)
    if not rows:
        return None
    steps = view.steps or 1
    has_backward = any(row.backward_ns for row in rows)
    keys = {"forward": "forward", "backward": "backward"} if has_backward else {}
    on_gpu = any(row.device_ns is not None for row in rows)
    repeated = [row for row in rows if (row.modules or 0) > 1]
    picture = Explained("")
    # Without GPU work in the steps no module has a time.
    if any(row.time_ns for row in rows if row.parent is None):
        drawn = icicle(_branches(rows, steps, has_backward=has_backward), _in_words(rows))
        picture = Explained(Markup('<div class="picture">{}</div>{}').format(drawn, colour_keys(keys, colour_of)))
    return [
        note(modules_note(on_gpu=on_gpu, per_step=bool(view.steps))),
        picture,
        Explained("", definitions(["ModuleTime.device_ns"])),
        *(
            [folded(fmt.plural(len(repeated), "repeated layer"), listing(repeated, steps=view.steps))]
            if repeated
            else []
        ),
        folded(
            "All modules and lines",
            listing(
                rows, ("path", "modules", "calls", "host_ns", "device_ns", "backward_ns"), most=60, steps=view.steps
            ),
        ),
    ]


def _branches(rows: Sequence[ModuleTime], steps: int, *, has_backward: bool) -> list[Branch]:
    """The trees, the largest first."""
    by_parent: dict[str | None, list[ModuleTime]] = {}
    for row in rows:
        by_parent.setdefault(row.parent, []).append(row)
    branches: dict[str, list[Branch]] = {}
    # From the innermost outwards: a path is longer than its parent's.
    for path in sorted((path for path in by_parent if path is not None), key=len, reverse=True):
        branches[path] = [
            _branch(row, branches.get(row.path, []), steps, has_backward=has_backward) for row in by_parent[path]
        ]
    return [
        _branch(row, branches.get(row.path, []), steps, has_backward=has_backward) for row in by_parent.get(None, [])
    ]


def _branch(row: ModuleTime, children: Sequence[Branch], steps: int, *, has_backward: bool) -> Branch:
    forward = row.time_ns - (row.backward_ns or 0)
    backward = row.backward_ns or 0
    parts = [(forward, colour_of("forward")), (backward, colour_of("backward"))] if has_backward else []
    return Branch(module_label(row), row.time_ns, module_text(row, steps), _FILLS[row.kind], parts, children)


def _in_words(rows: Sequence[ModuleTime]) -> str:
    """The outermost modules with their share of the time."""
    whole = sum(row.time_ns for row in rows if row.parent is None) or 1
    return ", ".join(f"{row.name} {fmt.share(row.time_ns / whole)}" for row in rows if row.parent is None)
