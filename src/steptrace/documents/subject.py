"""The subjects of a trace: one entry for each, which every layer reads.

An entry declares the subject's rows or figures, where a page shows it, and why it may be empty. What a layer does for
one subject beyond that is attached to the subject's name in that layer, beside the code that does it:

- how it is computed, by `part` or `table_part` of `analysis.common.registry`;
- the section of a trace's page that shows more than its table, by `section_of` of `report.trace.registry`;
- the exception on a study's page, by a `StudyView` in `report.study.views`.

All three refuse names that are not subjects. No other code lists subjects or asks for one by its name.

A subject whose figures other code reads as an attribute is a field of `TraceSummary`. A subject that is one table, and
nothing else, is a module in `documents.subjects`: it is found there.
"""

import pkgutil
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import GenericAlias, ModuleType, NoneType
from typing import Annotated, Any, Final, Generic, Literal, TypeVar, get_args, get_type_hints

import msgspec

from steptrace.documents.base import Document, Kind, Row, is_described

#: What a trace lacks, so that a subject has nothing to say. `words.codes` has the words.
Absence = Literal[
    "no_gpu_work",
    "gpu_records_lost",
    "neither_gpu_work_nor_labelled_steps",
    "fewer_than_two_gpu_activities",
    "no_runtime_calls",
    "launches_lost",
    "waits_lost",
    "unknown_runtime",
    "no_loader_label",
    "no_collective",
    "no_python_frames",
    "no_input_sizes",
    "no_data_sheet",
    "no_gpu_name",
    "no_operators_labels_or_gpu_work",
    "no_host_event",
    "no_label",
    "no_repeated_sequence",
    "no_linked_launch",
    "one_stream",
    "no_copy",
    "no_allocations",
    "nothing_checked",
    "no_steps_with_operators",
    "no_module_frames",
]
#: What a page, or `steptrace diff`, does with a subject.
#:
#: - `needs_gpu`: in a trace without GPU work, that is the reason why it has nothing to say.
#: - `folded`: a page shows it on demand only, with all others that are folded.
#: - `of_one_trace`: a page of several traces leaves it out, as it does with what is folded.
#: - `at_top`: a page of one trace leads with it, so it has no section there.
#: - `not_on_study`: a study's page has no section for it, since another section says more.
#: - `compared`: `steptrace diff` compares its rows as a table.
#: - `follows_launches`: it follows from the launches of the GPU's work, and is empty where too many are missing.
#: - `counts_unlinked`: it counts GPU work without a known launch, too, so nothing says which step that work is of.
#: - `before_findings`: the findings stand after it on a page.
Trait = Literal[
    "needs_gpu",
    "folded",
    "of_one_trace",
    "at_top",
    "not_on_study",
    "compared",
    "follows_launches",
    "counts_unlinked",
    "before_findings",
]

_Row = TypeVar("_Row", bound=Row)
_Struct = TypeVar("_Struct", bound=Document)


@dataclass(frozen=True)
class Subject:
    """A part of `TraceSummary` as pages, docs and comparisons take it.

    Attributes:
        name: its key in summary.json.
        heading: above it on a page.
        absent: why there is nothing to show where it is null or empty; None: that is no loss, and a page leaves it out
            without a word.
        traits: what a page does with it.
        after: the subject behind which it stands; empty: where its field stands.
        kind: the type of its rows, or of its figures.
        is_table: whether its value is a list of rows.
    """

    name: str
    heading: str
    absent: Absence | None
    traits: frozenset[Trait]
    after: str
    kind: type[Document]
    is_table: bool

    @property
    def needs_gpu(self) -> bool:
        """Whether it is about a GPU's work."""
        return "needs_gpu" in self.traits

    @property
    def folded(self) -> bool:
        """Whether a page shows it on demand only."""
        return "folded" in self.traits


def subject(
    heading: str, absent: Absence | None, *traits: Trait, kind: Kind | None = None, after: str = ""
) -> msgspec.Meta:
    """Declare a subject: its heading on a page, and why it may be null or empty, if a reader asks."""
    declared = {"heading": heading, "absent": absent, "traits": frozenset(traits), "after": after}
    return msgspec.Meta(description=f"{heading}.", extra={"column": {"kind": kind}, "subject": declared})


@dataclass(frozen=True)
class TableSubject(Generic[_Row]):
    """The entry of a subject that is one table: its key in summary.json, its row type, and what `subject` declares.

    Raises:
        ValueError: nothing says what a row is.
    """

    name: str
    rows: type[_Row]
    declared: msgspec.Meta

    def __post_init__(self) -> None:
        if not is_described(self.rows):
            raise ValueError(f"nothing says what a {self.rows.__name__} is: put @described(...) above the class")

    def rows_of(self, trace: Document) -> tuple[_Row, ...]:
        """The rows of this subject in a trace's summary."""
        rows: tuple[_Row, ...] = getattr(trace, self.name)
        return rows


def modules_in(package: str) -> list[ModuleType]:
    """Import every module of a package, by name, and return them."""
    names = sorted(module.name for module in pkgutil.iter_modules(import_module(package).__path__))
    return [import_module(f"{package}.{name}") for name in names]


def with_table_subjects(kind: type[_Struct]) -> type[_Struct]:
    """The struct with a field for each subject of `documents.subjects`, empty in files without it."""
    entries = [module.SUBJECT for module in modules_in("steptrace.documents.subjects")]
    fields: list[Any] = []
    for entry in entries:
        rows: Any = GenericAlias(tuple, (entry.rows, ...))
        fields.append((entry.name, Annotated[rows, entry.declared], ()))
    whole: Any = msgspec.defstruct(
        kind.__name__,
        fields,
        bases=(kind,),
        namespace={"__doc__": kind.__doc__},
        module=kind.__module__,
        frozen=True,
        kw_only=True,
    )
    return whole  # type: ignore[no-any-return]


@cache
def subjects_of(kind: type[Document]) -> tuple[Subject, ...]:
    """The subjects of a summary, in the order of a page."""
    hints = get_type_hints(kind, include_extras=True)
    fields = ((name, hints[name]) for name in kind.__struct_fields__)
    declared = ((name, hint, meta) for name, hint in fields for meta in getattr(hint, "__metadata__", ()))
    ordered: list[Subject] = []
    for name, hint, meta in declared:
        if "subject" not in (meta.extra or {}):
            continue
        is_table = any(
            getattr(part, "__origin__", part) is tuple for part in (hint.__origin__, *get_args(hint.__origin__))
        )
        found = Subject(name, kind=_struct_in(hint.__origin__), is_table=is_table, **meta.extra["subject"])
        names = [subject.name for subject in ordered]
        ordered.insert(names.index(found.after) + 1 if found.after in names else len(ordered), found)
    return tuple(ordered)


def _struct_in(hint: Any) -> type[Document]:
    """The struct in `tuple[Struct, ...]`, `Struct | None` or a combination of these."""
    if isinstance(hint, type) and issubclass(hint, Document):
        return hint
    return next(_struct_in(kind) for kind in get_args(hint) if kind not in (NoneType, ...))


def names_of_subjects(kind: type[Document]) -> frozenset[str]:
    """The names of a summary's subjects."""
    return frozenset(subject.name for subject in subjects_of(kind))


_NO_ROWS: Final = (None, ())


def is_empty(value: object) -> bool:
    """Whether a subject's value says nothing: null, no rows, or figures that say so by `is_empty`."""
    return value in _NO_ROWS or bool(getattr(value, "is_empty", False))
