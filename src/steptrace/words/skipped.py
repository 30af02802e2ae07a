"""Variants of a study's file that do not run here, in sentences."""

from collections.abc import Iterable

from steptrace import format as fmt
from steptrace.documents.run import SkippedVariant


def skipped_in_words(variants: Iterable[SkippedVariant]) -> list[str]:
    """Which variants were skipped, and why; a sentence for each reason."""
    by_reason: dict[str, list[str]] = {}
    for variant in variants:
        by_reason.setdefault(_reason(variant), []).append(variant.name)
    return [
        f"{fmt.names(names)} {'was' if len(names) == 1 else 'were'} skipped: {reason}."
        for reason, names in by_reason.items()
    ]


def _reason(variant: SkippedVariant) -> str:
    match variant.reason:
        case "other_scale":
            return f"only at scale {fmt.enumeration(list(variant.scales))}"
        case "package_missing":
            packages = fmt.enumeration([f"`{package}`" for package in variant.packages])
            return f"{packages} cannot be imported here"
