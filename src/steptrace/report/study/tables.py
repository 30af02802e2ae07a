"""The folded sections of a study's page: tables with a row for every variant, left out where nothing was measured.

A column is a heading, a figure of a variant and its unit; one without any value is left out.
"""

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import asdict

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, VariantResult
from steptrace.documents.overview import part_name
from steptrace.report.draw.names import MEMORY_CATEGORIES
from steptrace.report.page.definitions import definitions
from steptrace.report.page.markup import Html, breakable, render
from steptrace.report.page.overview import FORMAT_NAMES, formats_shown, operator_table, overview_parts
from steptrace.report.page.table import Figure, Unit, figures_table, named_facts

#: A host's memory of which less is used decides nothing between variants.
_SMALL_PART: Final = 0.05


def table(variants: Sequence[VariantResult], figures: Sequence[Figure]) -> Html:
    """Variants below each other with these figures of each."""
    return figures_table("Variant", {v.name: breakable(v.name) for v in variants}, figures)


def _section(lead: str, tables: Sequence[tuple[str, Html]], terms: Sequence[str]) -> Html:
    return render("study/tables", lead=lead, tables=tables, meanings=definitions(terms))


def overview(study: Comparison) -> Html | None:
    """Where a profiled step goes, in which number formats, and the operators with the most time."""
    variants = [variant for variant in study.variants if variant.overview is not None]
    if not variants:
        return None
    parts = {v.name: {part.label: part.ms for part in overview_parts(v.overview)} for v in variants}
    # Parts that no variant has say nothing: of eight causes of idle time most steps have one or two.
    labels = dict.fromkeys(label for of_variant in parts.values() for label, ms in of_variant.items() if ms)
    times = [
        Figure("Step time, unprofiled", study.medians_ms, "ms"),
        *(
            Figure(part_name(label).capitalize(), {name: of.get(label) for name, of in parts.items()}, "ms")
            for label in labels
        ),
        Figure("Profiled step", {name: sum(of.values()) for name, of in parts.items()}, "ms"),
    ]
    precisions = {v.name: v.trace.precision for v in variants if v.trace is not None and v.trace.precision is not None}
    formats = [
        Figure(FORMAT_NAMES[format_], {name: of.shares.get(format_) for name, of in precisions.items()}, "share")
        for format_ in formats_shown(list(precisions.values()))
    ]
    on_cores = {name: of.tensor_core_share for name, of in precisions.items()}
    formats.append(Figure("Matrix products on tensor cores", on_cores, "share"))
    computed = [v for v in variants if v.name in precisions and precisions[v.name].shares]
    tables = [("", table(variants, times))]
    tables += [("Kernel time by number format", table(computed, formats))] if computed else []
    terms = ["Overview.parts_ns", "TopOperator.host_self_ns"]
    terms += ["Precision.kernel_ns", "Precision.tensor_core_ns"] if computed else []
    return _section("", [*tables, *_top_operators(study)], terms)


def _top_operators(study: Comparison) -> list[tuple[str, Html]]:
    """Those with the most time of the baseline, and of the variant with the least step time."""
    baseline = next((v for v in study.variants if v.name == study.baseline), None)
    best = min(study.measured, key=lambda variant: study.medians_ms[variant.name], default=None)
    overviews = {v.name: v.overview for v in (baseline, best) if v is not None and v.overview is not None}
    return [
        (f"Top operators of {name}, {fmt.plural(of.steps, 'profiled step')}", Html(operator_table(of).html))
        for name, of in overviews.items()
        if of.operators
    ]


def input_pipeline(study: Comparison) -> Html | None:
    """Waits for data and the parts of loading; None if no variant is input-bound and no pass timed the parts."""
    waits = {v.name: v.input for v in study.variants if v.input is not None}
    loading = {name: asdict(of.breakdown_ms) for name, of in waits.items() if of.breakdown_ms is not None}
    if not loading and not any(of.verdict in ("moderate", "high") for of in waits.values()):
        return None
    verdicts = {"none": "no", "moderate": "moderately", "high": "highly", None: None}
    figures = [
        Figure("Input-bound", {name: verdicts[of.verdict] for name, of in waits.items()}),
        Figure("Share of the step", {name: of.share for name, of in waits.items()}, "share"),
        Figure("Wait", {name: of.wait_ms for name, of in waits.items()}, "ms"),
        Figure("Of it with the GPU idle", {name: of.idle_part for name, of in waits.items()}, "share"),
        *(
            Figure(f"{part.capitalize()}, a batch", {name: of[part] for name, of in loading.items()}, "ms")
            for part in ("fetch", "collate", "pin", "copy")
        ),
    ]
    lead = "Waits are means of unprofiled steps" + (
        "; the parts of loading are medians of a separate pass, in the process that does the work." if loading else "."
    )
    terms = ["LoaderWait.counted_ms", "LoaderWait.verdict"] + (["LoaderWait.breakdown_ms"] if loading else [])
    return _section(lead, [("", table([v for v in study.variants if v.name in waits], figures))], terms)


def memory(study: Comparison) -> Html | None:
    """Peaks, what held them, and how variants ran out of memory; None where a small part of a host's was used."""
    variants = [v for v in study.variants if v.device_memory is not None]
    if not variants or all(map(_memory_decides_nothing, variants)):
        return None
    on_cpu = any(v.device_memory is not None and v.device_memory.device_type == "cpu" for v in variants)
    # The allocator's own count stands for a trace without memory.
    untraced = [] if on_cpu else [v for v in study.variants if v not in variants and v.peak_allocated_bytes is not None]
    variants = [v for v in study.variants if v in variants or v in untraced]

    entries = {v.name: v.device_memory for v in variants if v.device_memory is not None}

    def figure(heading: str, name: str, unit: Unit = "B") -> Figure:
        return Figure(heading, {variant: getattr(entry, name) for variant, entry in entries.items()}, unit)

    figures = [
        Figure("Batch", {v.name: v.memory.batch_size for v in variants if v.memory is not None}),
        Figure(
            "Peak allocated",
            {name: entry.peak_allocated_bytes for name, entry in entries.items()}
            | {v.name: v.peak_allocated_bytes for v in untraced},
            "B",
        ),
        figure("Peak reserved", "peak_reserved_bytes"),
        Figure(
            "Capacity", {v.name: getattr(v.memory or v.device_memory, "capacity_bytes", None) for v in variants}, "B"
        ),
        figure("Headroom", "headroom_bytes"),
        *([] if on_cpu else [figure("Fragmentation", "fragmentation", "share")]),
        *(
            Figure(f"{name.capitalize()} copied", {v.name: (v.batch_bytes or {}).get(name) for v in variants}, "B")
            for name in ("inputs", "targets")
        ),
    ]
    at_peak = [
        Figure(
            word.capitalize(),
            {name: entry.by_category.get(key) or None for name, entry in entries.items()},
            "B",
            absent="none",
        )
        for key, (word, _) in MEMORY_CATEGORIES.items()
    ]
    traced = [v for v in variants if v.name in entries]
    incomplete = [name for name, entry in entries.items() if not entry.complete]
    lead = []
    if untraced:
        names = fmt.enumeration([f"`{v.name}`" for v in untraced])
        lead.append(f"The traces of {names} record no memory: their peak is that of the whole run.")
    lead += [f"Without what was held before the profiled window: {fmt.enumeration(incomplete)}."] if incomplete else []
    lead += ["Memory that libraries allocate themselves is not included."] if on_cpu else []
    tables = [("", table(variants, figures))]
    tables += [("Live at the peak", table(traced, at_peak))] if traced else []
    terms = ["DeviceMemory.peak_allocated_bytes", "DeviceMemory.by_category", "DeviceMemory.headroom_bytes"]
    terms += ["VariantResult.batch_bytes"] if any(v.batch_bytes for v in variants) else []
    return _section(" ".join(lead), tables, [*terms, *([] if on_cpu else ["DeviceMemory.fragmentation"])])


def _memory_decides_nothing(variant: VariantResult) -> bool:
    entry = variant.device_memory
    if entry is None or entry.device_type != "cpu":
        return False
    return entry.capacity_bytes is not None and entry.peak_allocated_bytes < _SMALL_PART * entry.capacity_bytes


def communication(study: Comparison) -> Html | None:
    """What all-reduces should take, what they took, and what hid them; None where no variant has several ranks."""
    variants = [v for v in study.variants if v.communication is not None]
    trained = {v.name: v.communication for v in variants if v.communication is not None}
    if not trained:
        return None
    first = next(iter(trained.values()))

    reduced = {v.name: v.ranks.all_reduce for v in variants if v.ranks is not None}

    def traced(heading: str, name: str, unit: Unit = "ns") -> Figure:
        return Figure(heading, {variant: getattr(of, name, None) for variant, of in reduced.items()}, unit)

    figures = [
        Figure(
            "Buckets", {name: None if of.bucket_bytes is None else len(of.bucket_bytes) for name, of in trained.items()}
        ),
        traced("All-reduces", "count_per_step", None),
        traced("Bytes", "bytes_per_step", "B"),
        Figure("Expected", {name: of.expected_ns for name, of in trained.items()}, "ns"),
        Figure("Simpler formula", {name: of.simplified_ns for name, of in trained.items()}, "ns"),
        traced("Measured", "measured_ns_per_step"),
        traced("Exposed", "exposed_ns_per_step"),
        traced("Overlap", "overlap", "share"),
        traced("Waited", "wait_ns_per_step"),
        Figure("Straggler", {v.name: _straggler(v) for v in variants}),
        Figure("Bus bandwidth", {name: of.bus_bytes_per_s for name, of in trained.items()}, "B/s"),
    ]
    alone = [variant.name for variant in study.measured if variant.name not in trained]
    lead = (
        f"{first.world_size} ranks over {first.backend}; {fmt.count(first.parameters)} parameters, "
        f"{fmt.size_bytes(first.parameter_bytes)} of gradients."
        + (f" Without communication: {fmt.enumeration(alone)}." if alone else "")
    )
    terms = [
        "Communication.expected_ns", "Communication.bus_bytes_per_s", "RankAllReduce.measured_ns_per_step",
        "RankAllReduce.wait_ns_per_step", "Communication.bucket_bytes", "Communication.world_size",
    ]  # fmt: skip
    return _section(lead, [("All-reduces per profiled step", table(variants, figures))], terms)


def _straggler(variant: VariantResult) -> str:
    of = None if variant.ranks is None else variant.ranks.straggler
    return "none" if of is None or of.rank is None else f"rank {of.rank}, {fmt.share(of.share)} of all waiting"


def section_times(study: Comparison) -> Html | None:
    """The labelled sections of a step, timed with a sync around each; None where no pass timed them."""
    timed = {v.name: v.synced_sections_ms for v in study.variants if v.synced_sections_ms}
    if not timed:
        return None
    labels = dict.fromkeys(label for of_variant in timed.values() for label in of_variant)
    each = [Figure(label.capitalize(), {name: of.get(label) for name, of in timed.items()}, "ms") for label in labels]
    each.append(Figure("Step time, unprofiled", study.medians_ms, "ms"))
    title = "Each section by itself, with a sync before and after"
    return _section("", [(title, table(study.variants, each))], ["VariantResult.synced_sections_ms"])


def method(study: Comparison) -> Html:
    """How the comparison was made."""
    of = study.method
    facts = [
        ("Interval", of.interval),
        ("Confidence", fmt.setting(of.confidence)),
        ("Noise floor", f"{fmt.setting(of.noise_floor)} ({of.noise_floor_source.replace('default', 'the default')})"),
        ("Correction for several candidates", of.correction or "no correction stated"),
    ]
    return Html(named_facts(facts) + _section("", [], ["Method.noise_floor"]))


#: What a study says of a subject of its variants' traces; of the others a table of all variants follows from the
#: columns (`subjects`).
SECTIONS: Final[dict[str, Callable[[Comparison], Html | None]]] = {
    "overview": overview,
    "input": input_pipeline,
    "collectives": communication,
    "memory": memory,
}
