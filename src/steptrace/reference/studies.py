"""The tables made from studies: the articles' claims, predictions judged, overheads.

Step times are unprofiled, with the interval and verdict that comparison.json gives them. A *profiled step* is the
median profiled step: the unprofiled median times the ratio of both in the same runs.
"""

from collections.abc import Iterator
from typing import Any, Final

from steptrace.reference import articles
from steptrace.reference.load import Results, Variant
from steptrace.reference.markdown import gain, step, syncs, table, times
from steptrace.report import format as fmt

MASKED, GIOU, HEAVY, OVERHEADS = "masked_loss", "giou", "giou_heavy", "overheads"
_CONDITIONAL: Final = ("kernel", "kernel_conditional")


_PROFILED_WHY: Final = (
    "The article's profiled step is the host's: without a wait the host is done long before the GPU. "
    "Here it ends with the GPU's work."
)
_UNPROFILED_WHY: Final = "How long the GPU computes and how long the host takes to launch are each machine's own."


def profiled_ms(variant: Variant) -> float | None:
    """The median profiled step."""
    median, ratio = (variant.get("step_ms") or {}).get("median"), variant.get("profiled_over_unprofiled")
    return None if median is None or ratio is None else float(median) * float(ratio)


def masked_steps(results: Results) -> str:
    """The stages of the masked loss: the article's steps and those of this machine."""
    head = ["variant", "article, profiled", "article, unprofiled", "here, profiled", "here, unprofiled (95 %)"]
    rows = [
        [
            name,
            _reported(articles.MASKED_PROFILED_MS.get(name)),
            _reported(articles.MASKED_UNPROFILED_MS.get(name)),
            fmt.duration_ms(profiled_ms(variant)),
            step(variant),
            gain(variant),
            *syncs(variant),
        ]
        for name, variant in results.variants(MASKED).items()
    ]
    return table([*head, "gain here (95 %)", "syncs predicted", "warned of", "traced"], rows)


def masked_claims(results: Results) -> str:
    """What the article says of the masked loss, what is found here, and why they differ."""
    variants = results.variants(MASKED)
    if not variants:
        return table([], [])
    first, last = variants.get("boolean_mask", {}), variants.get("ignore_index", {})
    machines = _machines(articles.MASKED_SETTING, results)
    before, after = profiled_ms(first), profiled_ms(last)
    rows = [
        [
            "gain of the last stage, profiled",
            f"{articles.MASKED_GAIN['profiled']:g}×",
            times(None if before is None or not after else before / after),
            f"{_PROFILED_WHY} {machines}",
        ],
        [
            "gain of the last stage, unprofiled",
            f"about {articles.MASKED_GAIN['unprofiled']:g}×",
            gain(last),
            f"{_UNPROFILED_WHY} {machines}",
        ],
        *(
            [
                f"`{name}` gains nothing",
                "none",
                gain(variants.get(name, {})),
                "The next operation waits for the same work.",
            ]
            for name in ("where", "sort")
        ),
        [
            "GPU utilisation before any fix, as sampled",
            f"about {articles.MASKED_SAMPLED_UTILISATION_PCT:g} %",
            f"{fmt.percent(first.get('nvml_util_pct'))}; busy by the trace: {fmt.percent(first.get('gpu_busy_pct'))}",
            "A sample counts as used if any kernel ran in it, however short.",
        ],
    ]
    return table(["claim", "article", "here", "why they differ"], rows)


def giou_sections(results: Results) -> str:
    """Copy, forward and loss of the GIoU stages, each with a synchronisation around it, as the article timed them."""
    sections = ("copy data", "forward", "calc loss")
    head = ["variant", *(f"{section}, {whose}" for section in sections for whose in ("article", "here"))]
    variants = results.variants(GIOU)
    rows = []
    for name, variant in variants.items():
        here, there = variant.get("synchronised_sections_ms") or {}, articles.GIOU_SECTIONS_MS.get(name, {})
        pairs = [(there.get(section), here.get(section)) for section in sections]
        figures = [text for article, own in pairs for text in (_reported(article), fmt.duration_ms(own))]
        gains = [_over(variants.get("loop", {}), variant), gain(variant)]
        article = "not reported" if name not in articles.GIOU_SECTIONS_MS else times(_article_gain(name))
        rows.append([name, *figures, article, *gains])
    return table([*head, "loss, gain over `loop`, article", "here", "whole step, gain here (95 %)"], rows)


def giou_differences(results: Results) -> str:
    """Why the sections differ, in sentences."""
    if not results.variants(GIOU):
        return ""
    return (
        f"Why they differ: {_machines(articles.GIOU_SETTING, results)} The article's network runs under torch.compile, "
        "here it is eager. The article's listings compute another loss (see the study `giou_as_published`): areas "
        "overflow in uint8, sides are not clamped. `compiled` and `fused` are not in the article. The whole step has "
        "backward and optimizer, which the article leaves out.\n"
    )


def giou_memory(results: Results) -> str:
    """What padding costs in memory."""
    variants = results.variants(GIOU)
    padded, joined = variants.get("padding", {}), variants.get("concat", {})
    sizes = [variant.get("batch_bytes") or {} for variant in (joined, padded)]
    peaks = [variant.get("peak_allocated_bytes") for variant in (joined, padded)]
    share = None if None in peaks or not peaks[0] else peaks[1] / peaks[0] - 1
    rows = [
        ["a batch's boxes", *(fmt.size_bytes(size.get("targets")) for size in sizes), "not measured"],
        ["a batch's images", *(fmt.size_bytes(size.get("inputs")) for size in sizes), "not measured"],
        ["peak memory", *map(fmt.size_bytes, peaks), f"{fmt.share(share)} more (article: under 1 %)"],
    ]
    return table(["", "`concat`", "`padding`", "cost of padding"], rows if variants else [])


def conditional(results: Results) -> str:
    """From how much arithmetic per box on the branch for padding pays."""
    variants = results.variants(HEAVY)
    rows, pays = [], []
    for name in variants:
        label, _, setting = name.partition("__")
        if label != _CONDITIONAL[0]:
            continue
        pair = [variants.get(f"{kind}__{setting}", {}) for kind in _CONDITIONAL]
        losses = [(variant.get("synchronised_sections_ms") or {}).get("calc loss") for variant in pair]
        rows.append([setting.replace("iterations-", ""), *map(fmt.duration_ms, losses), _over(*pair), gain(pair[1])])
        if (pair[1].get("ratio") or {}).get("verdict") == "faster":
            pays.append(int(setting.rpartition("-")[2]))
    head = ["repetitions of the arithmetic", "loss of `kernel`", "of `kernel_conditional`", "loss, gain"]
    answer = f"\nThe whole step is faster from {min(pays)} repetitions on.\n" if pays else ""
    answer = answer or ("\nThe whole step is faster at none of them.\n" if rows else "")
    return table([*head, "whole step, gain (95 %)"], rows) + answer


def predictions(results: Results) -> str:
    """Predicted, warned and traced syncs of every variant, and each place where they are not the same."""
    rows, places = [], []
    for study, variant in _all(results):
        counts = variant.get("syncs") or {}
        taken = [counts.get(f"{name}_per_step") for name in ("predicted", "warned", "measured")]
        same = "not judged" if taken[0] is None or taken[2] is None else "yes" if taken[0] == taken[2] else "no"
        rows.append([study, variant["name"], *syncs(variant), same])
        places += [
            [
                *(
                    study,
                    variant["name"],
                    f"{place['file'] or 'no line of the program'}:{place['line'] or ''}".rstrip(":"),
                ),
                *(fmt.count(place[name]) for name in ("predicted", "warned", "traced")),
                place["why"],
            ]
            for place in variant.get("sync_agreement") or ()
            if place["why"]
        ]
    judged = [row[-1] for row in rows if row[-1] != "not judged"]
    said = f"Prediction and trace agree in {judged.count('yes')} of {len(judged)} variants that have both.\n\n"
    head = ["study", "variant", "predicted", "warned of", "traced", "agree"]
    where = table(["study", "variant", "place", "predicted", "warned of", "traced", "why"], places) if places else ""
    return said + table(head, rows) + (f"\nWhere they differ:\n\n{where}" if where else "")


def what_if(results: Results) -> str:
    """Steps foretold by taking the baseline's syncs out of its trace, and as they were measured."""
    rows = [
        [
            *(
                study,
                variant["name"],
                fmt.duration_ms(foretold["predicted_ms"]),
                fmt.duration_ms(foretold["measured_ms"]),
            ),
            fmt.share(foretold["error"]) if foretold["error"] is not None else foretold["reason"] or fmt.NOT_MEASURED,
        ]
        for study, variant in _all(results)
        if (foretold := variant.get("whatif"))
    ]
    return table(["study", "variant", "step foretold", "step measured", "error, or why there is none"], rows)


def equivalence(results: Results) -> str:
    """Every variant's loss and gradient against the float64 reference, on this machine."""
    rows = []
    for study, variant in _all(results):
        found: dict[str, Any] = variant.get("equivalence") or {}
        tolerance = (found.get("tolerance") or {}).get("gradient")
        errors = (found.get("loss_rel_err"), found.get("gradient_rel_err"), tolerance)
        rows.append([study, variant["name"], found.get("status") or fmt.NOT_MEASURED, *map(fmt.relative_error, errors)])
    return table(
        ["study", "variant", "answer", "error of the loss", "of the gradient", "allowed of the gradient"], rows
    )


def overheads(results: Results) -> str:
    """What the flags of the profiler cost a profiled step, and NVML's sampling an unprofiled one."""
    rows = [
        [name, step(variant), gain(variant), times(variant.get("profiled_over_unprofiled"))]
        for name, variant in results.variants(OVERHEADS).items()
    ]
    return table(["variant", "step, unprofiled (95 %)", "against `plain` (95 %)", "profiled / unprofiled"], rows)


def profiled_steps(results: Results) -> str:
    """The same ratio of every other study."""
    rows = [
        [study, variant["name"], times(variant.get("profiled_over_unprofiled"))]
        for study, variant in _all(results)
        if study != OVERHEADS
    ]
    return table(["study", "variant", "profiled / unprofiled"], rows)


def _all(results: Results) -> Iterator[tuple[str, Variant]]:
    for name, study in results.studies.items():
        for variant in study["variants"]:
            yield name, variant


def _machines(setting: articles.Setting, results: Results) -> str:
    torch = results.environment.get("torch") or "unknown"
    return f"{setting.gpu} and PyTorch {setting.torch} there, {results.machine} and {torch} here."


def _reported(figure_ms: float | None) -> str:
    return "not reported" if figure_ms is None else fmt.duration_ms(figure_ms)


def _article_gain(name: str) -> float:
    return articles.GIOU_SECTIONS_MS["loop"]["calc loss"] / articles.GIOU_SECTIONS_MS[name]["calc loss"]


def _over(baseline: Variant, variant: Variant) -> str:
    losses = [(entry.get("synchronised_sections_ms") or {}).get("calc loss") for entry in (baseline, variant)]
    return times(None if None in losses or not losses[1] else losses[0] / losses[1])
