"""Gates: what must hold of a variant, else the workflow's exit code is 1.

A gate holds one figure of one variant in comparison.json against limits. A figure that was not measured breaks its
gate: a gate nobody can check must not look like one that holds.

Two figures are more than a look-up. `syncs.per_step` is the measured count, or the predicted one where no GPU measured
any; with an `allow` list, the syncs at those lines are left out, so that a wait that the program needs is no violation
and a new sync is. And `at_most_ratio` holds a figure against the same one of a stored baseline (see
`steptrace.judging.baseline`).
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import PurePath
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from steptrace.documents.base import Document
from steptrace.documents.comparison import Comparison, GateOutcome, PredictedSite, VariantResult
from steptrace.documents.comparison.syncs import BATCH_COPY, is_batch_copy
from steptrace.documents.figures import figures_of
from steptrace.documents.kept import Baseline
from steptrace.errors import ConfigError
from steptrace.names import near

#: study -> variant (`*`: every one) -> dotted key of the variant in comparison.json -> limits.
Gates = Mapping[str, Mapping[str, Mapping[str, Mapping[str, Any]]]]
Limits = Mapping[str, Any]

EVERY_VARIANT: Final = "*"
PER_STEP: Final = "syncs.per_step"
_MEASURED, _PREDICTED = "syncs.measured_per_step", "syncs.predicted_per_step"
#: What a gate can hold: a variant's figures in comparison.json, and for a group of them the names in it. `*` stands for
#: names that the program gives (its sections), and `per_step` for the count that was measured, else predicted.
FIGURES: Final[Mapping[str, tuple[str, ...]]] = {
    group: (*names, "per_step") if group == "syncs" else names for group, names in figures_of(VariantResult).items()
}
_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")


@dataclass(frozen=True)
class Baselines:
    """Stored baselines by name, and for those that cannot be used the reason why."""

    documents: Mapping[str, Baseline] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)
    #: Reasons that concern this machine alone: gates on them are skipped, not broken.
    elsewhere: Mapping[str, str] = field(default_factory=dict)


def outcomes(comparison: Comparison, gates: Gates, baselines: Baselines | None = None) -> list[GateOutcome]:
    """Judge the gates of one study. A gate that cannot be judged, such as one with a misspelt key, is broken.

    Args:
        comparison: the study.
        gates: the key `gates` of workflow.yaml.
        baselines: those that the gates name.
    """
    found = []
    for name, keys in gates.get(comparison.study, {}).items():
        variants = [variant for variant in comparison.variants if name in (EVERY_VARIANT, variant.name)]
        for key, limits in keys.items():
            for variant in variants:
                gate = _gate(comparison.study, variant.name, key, limits)
                found.append(_judge(gate, comparison, variant, baselines or Baselines()))
            if not variants:
                found.append(_gate(comparison.study, name, key, limits, f"{name} did not run"))
    return found


def not_run(study: str, gates: Gates) -> list[GateOutcome]:
    """The gates of a study that did not run: all skipped."""
    return [
        _gate(study, variant, key, limits, f"{study} did not run")
        for variant, keys in gates.get(study, {}).items()
        for key, limits in keys.items()
    ]


def _gate(study: str, variant: str, key: str, limits: Limits, text: str = "") -> GateOutcome:
    """A gate before it is judged, which is as if it was skipped."""
    return GateOutcome(
        study=study, variant=variant, key=key, limits=dict(limits), value=None, outcome="skipped", text=text
    )


def baselines_of(gates: Gates) -> list[str]:
    """The names of the baselines that gates mention, each once."""
    limits = [limits for variants in gates.values() for keys in variants.values() for limits in keys.values()]
    return list(dict.fromkeys(str(limit["baseline"]) for limit in limits if "baseline" in limit))


def check_key(key: str) -> None:
    """Refuse a key that no variant of any study has, before anything is trained for it.

    Raises:
        ConfigError: naming those that are near.
    """
    group, _, figure = key.partition(".")
    known = FIGURES.get(group)
    if known is None:
        raise ConfigError(
            f"a variant has no figure '{key}'",
            expected="a key of a variant in comparison.json, such as ratio.low or syncs.per_step",
            next_step=near(group, FIGURES),
        )
    if figure not in (known or ("",)) and not any(fnmatchcase(figure, name) for name in known if "*" in name):
        if known and not figure:
            hint = f"known: {', '.join(f'{group}.{name}' for name in known)}"
        else:
            hint = near(key, [f"{group}.{name}" for name in known] or [group])
        raise ConfigError(f"a variant has no figure '{key}'", next_step=hint)


def over_budget(sites: Iterable[PredictedSite], allow: Sequence[str]) -> list[PredictedSite]:
    """The sites that no entry of `allow` covers: `FILE:LINE`, `FILE` or a function's name, files by their end."""
    return [site for site in sites if not any(_allows(entry, site) for entry in allow)]


def described(site: PredictedSite) -> str:
    """A site in one line: `losses.py:38 in forward, torch.unique(target): 1 d2h copy in backward`."""
    if is_batch_copy(site):
        place = BATCH_COPY
    elif site.file is None:
        place = f"no line of the program, label '{site.label}'" if site.label else "no line of the program"
    else:
        place = f"{site.file}:{site.line}"
    function = f" in {site.function}" if site.function else ""
    code = f", `{site.code}`" if site.code else ""
    phase = " in backward" if site.phase == "backward" else ""
    return f"{place}{function}{code}: {site.count_per_step or 0:g} {str(site.kind).replace('_', ' ')}{phase}"


def _allows(entry: str, site: PredictedSite) -> bool:
    if site.file is None:
        return False
    match = _LINE.fullmatch(entry)
    if match is not None:
        return site.line == int(match["line"]) and _is_end(match["file"], site.file)
    if "/" in entry or entry.endswith(".py"):
        return _is_end(entry, site.file)
    function = site.function or ""
    return entry in (function, function.rpartition(".")[2])


def _is_end(name: str, file: str) -> bool:
    wanted, parts = PurePath(name).parts, PurePath(file).parts
    return parts[-len(wanted) :] == wanted


def _judge(gate: GateOutcome, comparison: Comparison, variant: VariantResult, baselines: Baselines) -> GateOutcome:
    key, limits = gate.key, gate.limits
    if limits.get("scale", comparison.scale) != comparison.scale:
        return replace(gate, text=f"for scale {limits['scale']} alone")
    name = limits.get("baseline")
    if name in baselines.elsewhere:
        return replace(gate, text=baselines.elsewhere[str(name)])
    shown = f"{gate.study}/{gate.variant} {key}"
    if key == PER_STEP:
        key = _PREDICTED if variant.syncs.measured_per_step is None else _MEASURED
        shown += f" ({key.removeprefix('syncs.').removesuffix('_per_step')})"
    try:
        value, violations = _value(variant, key, limits)
        stored = _stored(baselines, gate, key) if "at_most_ratio" in limits else None
    except ConfigError as error:
        expected = f", expected {error.expected}" if error.expected else ""
        return replace(gate, outcome="broken", text=f"{shown} cannot be judged: {error.what}{expected}")
    problems = _problems(value, limits)
    if name in baselines.problems:
        problems.append(baselines.problems[str(name)])
    elif "at_most_ratio" in limits:
        problems += _ratio_problems(value, stored, limits)
    if not problems:
        return replace(gate, outcome="held", value=value)
    text = f"{shown}{' beyond those allowed' if limits.get('allow') else ''} is "
    text += f"{'not measured' if value is None else _shown(value)}, {' and '.join(problems)}"
    if value and violations:
        text += f": {'; '.join(map(described, violations))}"
    return replace(gate, outcome="broken", text=text, value=value)


def _stored(baselines: Baselines, gate: GateOutcome, key: str) -> Any:
    """The same figure of the baseline that the gate names; None where that does not have it."""
    document = baselines.documents.get(str(gate.limits.get("baseline")))
    study = None if document is None else document.studies.get(gate.study)
    variant = None if study is None else study.variants.get(gate.variant)
    return None if variant is None else _lookup(variant, key)


def _value(variant: VariantResult, key: str, limits: Limits) -> tuple[Any, list[PredictedSite]]:
    """A variant's figure, and for a count of syncs the sites that it is made of; allowed ones count for nothing."""
    value = _lookup(variant, key)
    if key not in (_MEASURED, _PREDICTED):
        if "allow" in limits:
            raise ConfigError(f"'allow' is for counts of syncs, not for '{key}'")
        return value, []
    sites = variant.sync_sites if key == _MEASURED else variant.predicted_sites
    violations = over_budget(sites, limits.get("allow", ()))
    if value is not None and len(violations) < len(sites):
        allowed = sum(site.count_per_step or 0 for site in sites if site not in violations)
        value = max(round(value - allowed, 9), 0)  # of counts such as 7 in 10 steps, what is left is 0 but for 1e-16
    return value, violations


def _problems(value: Any, limits: Limits) -> list[str]:
    problems = []
    if "equals" in limits and value != limits["equals"]:
        problems.append(f"expected {limits['equals']}")
    number = _is_number(value)
    if "at_least" in limits and not (number and value >= limits["at_least"]):
        problems.append(f"expected at least {limits['at_least']}")
    if "at_most" in limits and not (number and value <= limits["at_most"]):
        problems.append(f"expected at most {limits['at_most']}")
    return problems


def _ratio_problems(value: Any, before: Any, limits: Limits) -> list[str]:
    """What is wrong with a figure against the stored one."""
    name, most = limits["baseline"], limits["at_most_ratio"]
    if not _is_number(before) or before <= 0:
        return [f"expected at most {most} times that of baseline '{name}', which does not have it: save it anew"]
    if not _is_number(value):
        return [f"expected at most {most} times the {before:.6g} of baseline '{name}'"]
    if value > most * before:
        return [f"{value / before:.3f} times the {before:.6g} of baseline '{name}', expected at most {most} times"]
    return []


def _shown(value: Any) -> str:
    """A figure for a sentence: sixteen digits are no more exact than six."""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


def _lookup(document: Document, key: str) -> Any:
    """The value at a dotted key, as JSON has it."""
    node: Any = msgspec.to_builtins(document)
    for part in key.split("."):
        if not isinstance(node, Mapping) or not node:
            return None  # the whole group was not measured
        if part not in node:
            raise ConfigError(
                f"there is no '{key}' in comparison.json",
                expected=f"one of {', '.join(map(str, node))}",
            )
        node = node[part]
    return node
