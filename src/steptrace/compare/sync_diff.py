"""Which synchronisations a variant does away with, which it keeps, and which are new.

A site is the same if file, line and all else that is known of it agree; of the rest, sites with the same operator,
label, phase and kind are taken for the same site on another line. What a trace measured is compared with what a trace
measured, else a prediction with a prediction, never one with the other.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

Site = Mapping[str, Any]

_HERE: Final = ("file", "line", "function", "op", "label", "kind", "phase")
_MOVED: Final = ("op", "label", "kind", "phase")
_BASES: Final = ("measured", "predicted")
_FIGURES: Final = ("count_per_step", "blocked_ns_per_step", "exposed_idle_ns_per_step")


def sync_diff(baseline: Mapping[str, Any], variant: Mapping[str, Any]) -> dict[str, Any] | None:
    """`sync_diff` of comparison.json from two of its variants; None for the baseline, or with nothing to compare.

    `basis` is `measured` or `predicted`. Each of `sites` has the baseline's place, or the variant's for a new site, the
    variant's own place where it differs, and for both sides the count per step and, where measured, blocked time and
    exposed idle per step; 0 where a side has no such site. What changes in number comes first, the dearest foremost.
    """
    if baseline["name"] == variant["name"]:
        return None
    basis = _basis(baseline, variant)
    if basis is None:
        return None
    key = "sync_sites" if basis == "measured" else "predicted_sites"
    pairs = _pairs(baseline.get(key) or (), variant.get(key) or ())
    sites = [_row(before, after, basis) for before, after in pairs]
    return {"basis": basis, "sites": sorted(sites, key=_order)}


def _basis(baseline: Mapping[str, Any], variant: Mapping[str, Any]) -> str | None:
    for basis in _BASES:
        if all((side.get("syncs") or {}).get(f"{basis}_per_step") is not None for side in (baseline, variant)):
            return basis
    return None


def _pairs(before: Sequence[Site], after: Sequence[Site]) -> list[tuple[Site | None, Site | None]]:
    """The sites of both sides, matched; None where one side has no such site."""
    left, right = list(before), list(after)
    pairs: list[tuple[Site | None, Site | None]] = []
    for names in (_HERE, _MOVED):
        for site in list(left):
            match = next((other for other in right if all(site.get(n) == other.get(n) for n in names)), None)
            if match is not None:
                pairs.append((site, match))
                left.remove(site)
                right.remove(match)
    return [*pairs, *((site, None) for site in left), *((None, site) for site in right)]


def _row(before: Site | None, after: Site | None, basis: str) -> dict[str, Any]:
    place = before if before is not None else after
    assert place is not None
    row = {name: place.get(name) for name in (*_HERE, "code")}
    moved = before is not None and after is not None and any(before.get(n) != after.get(n) for n in ("file", "line"))
    row |= {f"variant_{name}": after.get(name) if moved and after is not None else None for name in ("file", "line")}
    for name in _FIGURES:
        measured = name == "count_per_step" or basis == "measured"
        for side, site in (("baseline", before), ("variant", after)):
            row[f"{side}_{name}"] = (0 if site is None else site.get(name)) if measured else None
    return row


def _order(row: Mapping[str, Any]) -> tuple[Any, ...]:
    before, after = row["baseline_count_per_step"] or 0, row["variant_count_per_step"] or 0
    dearest = max(row[f"{side}_blocked_ns_per_step"] or 0 for side in ("baseline", "variant"))
    return before == after, -dearest, str(row["file"]), row["line"] or 0
