"""What usually stands in for an operation that makes the host wait, and when that does not pay (replacements.toml)."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from steptrace.documents.syncs import PredictedSite, Site, is_batch_copy

#: The texts: `operators` and `kinds` by name, `special` ones, and `counter_checks`.
WORDS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

_DDP_LABEL: Final = "DistributedDataParallel.forward"
#: Operators that read a value on the host: under their names those of `unique` read the number of distinct values.
_VALUES: Final = frozenset(WORDS["counter_checks"]["added"]["values"]["operators"])
_UNIQUE: Final = re.compile(r"\bunique(_consecutive)?\(")

#: Their texts are on copies from the host.
_COPIES: Final = ("aten::_to_copy", "aten::to")
_INDEXING: Final = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
#: An index in square brackets, and what copies to the device beside one.
_SUBSCRIPT: Final = re.compile(r"[\w)\]]\[[^\]]")
_EXPLICIT_COPY: Final = re.compile(r"\.(to|cuda|copy_)\(|\b(as_)?tensor\(|from_numpy\(|\bdevice\s*=")
_DISTRIBUTIONS: Final = (
    "Bernoulli|Beta|Binomial|Categorical|Cauchy|Dirichlet|Exponential|Gamma|Geometric|Gumbel|Independent|Laplace|"
    "LogNormal|MixtureSameFamily|Multinomial|MultivariateNormal|NegativeBinomial|Normal|OneHotCategorical|Poisson|"
    "StudentT|TransformedDistribution|Uniform|VonMises"
)
#: Calls that read a value inside PyTorch, by name in `special`.
_INSIDE: Final = {
    "distributions": re.compile(rf"\.(log_prob|cdf|icdf)\(|\bdistributions\.\w+\(|\b({_DISTRIBUTIONS})\("),
    "scaler": re.compile(r"scaler\w*\.(step|update)\(", re.IGNORECASE),
    "formatted": re.compile(
        r"""\b(rf|fr|f)["']|["']\s*%|%\s*self\.args\b|\.format\(|\bprint\(|\b(str|repr)\(""", re.IGNORECASE
    ),
}
#: Files of libraries that copy batches, by their ends, and the name in `special` of what sets how they do.
_LIBRARIES: Final = {
    "accelerate/utils/operations.py": "accelerate",
    "lightning/fabric/utilities/apply_func.py": "lightning",
    "lightning_fabric/utilities/apply_func.py": "lightning",
}
#: What names an option, so that it stands for a line in a library as well.
_OPTIONS: Final = ("accelerate", "lightning", "unused_parameters", "ddp_timing", "batch_copy", "batch_copy_pinned")
#: DistributedDataParallel copies to the host at the end of a backward pass; the line is that which called it.
_BACKWARD: Final = re.compile(r"\bbackward\(")
#: A read of a value that stands there, whatever is formatted.
_READ: Final = re.compile(r"\.(item|tolist)\(")


def operation(site: Site) -> str:
    """The operator that the program called: a boolean index looks for its true elements by `aten::nonzero`.

    The operators of `unique` read the number of distinct values as `item` does, under its name.
    """
    op, code = site.op or "", site.code or ""
    if op in _VALUES and _UNIQUE.search(code):
        return "aten::unique_consecutive" if "unique_consecutive" in code else "aten::_unique2"
    return "aten::index" if op == "aten::nonzero" and "[" in code and "nonzero" not in code else op


def replacement(site: Site) -> str | None:
    """The usual replacement of the operation at a site; None if there is no usual one."""
    kind = site.kind or ""
    special = _special(site)
    if _is_pinned(site) and f"{special or 'copy'}_pinned" in WORDS["special"]:
        special = f"{special or 'copy'}_pinned"
    entry: str | None = WORDS["special"][special] if special else WORDS["operators"].get(operation(site))
    if special is None and kind == "d2h_copy" and site.op in _COPIES:
        entry = WORDS["kinds"][kind]
    text = entry or next((text for name, text in WORDS["kinds"].items() if kind.endswith(name)), None)
    if text is None or special in _OPTIONS or site.program is None:
        return text
    return str(WORDS["special"]["library"]).format(text=text)


def _is_pinned(site: Site) -> bool:
    """Whether a copy to the device comes from pinned memory, as far as that is known."""
    return isinstance(site, PredictedSite) and bool(site.pinned)


def _special(site: Site) -> str | None:
    """The name of the text for a site whose operator alone does not say what to change."""
    if is_batch_copy(site.file, site.label, site.kind):
        return "batch_copy"
    if _is_ddp_timing(site):
        return "ddp_timing"
    code = site.code or ""
    if site.kind == "h2d_copy":
        of_library = next((name for end, name in _LIBRARIES.items() if (site.file or "").endswith(end)), None)
        if of_library is not None:
            return of_library
    is_backward = _BACKWARD.search(code) is not None and _EXPLICIT_COPY.search(code) is None
    if site.kind == "d2h_copy" and site.op == "aten::copy_" and is_backward:
        return "unused_parameters"
    if site.kind == "h2d_copy" and (site.op in _INDEXING or (site.op in _COPIES and _indexes_from_host(code))):
        return "from_host"
    if site.kind == "h2d_copy" and "pack_padded_sequence(" in code and _EXPLICIT_COPY.search(code) is None:
        return "lengths"
    if site.phase == "backward" and site.kind == "d2h_copy" and (site.op in _INDEXING or operation(site) in _INDEXING):
        return "mask_backward"
    if site.op in _VALUES:
        inside = (name for name, called in _INSIDE.items() if called.search(code))
        return next((name for name in inside if name != "formatted" or not _READ.search(code)), None)
    return None


def _indexes_from_host(code: str) -> bool:
    """Whether a line copies nothing to the device but the index between its square brackets."""
    return _SUBSCRIPT.search(code) is not None and _EXPLICIT_COPY.search(code) is None


def _is_ddp_timing(site: Site) -> bool:
    return site.label == _DDP_LABEL and (site.kind or "").endswith("EventSynchronize")


def counter_check(site: Site) -> str:
    """How to find out that the replacement does not pay at this site."""
    op, checks = operation(site), WORDS["counter_checks"]
    if _is_ddp_timing(site):
        return str(checks["ddp_timing"])
    if _special(site) == "unused_parameters":
        return str(checks["any"])
    if not op and (site.kind or "").endswith("_copy"):
        op = "aten::copy_"
    groups = (group for name, group in checks["added"].items() if name != "copies" or not _is_pinned(site))
    return " ".join([checks["any"], *(group["text"] for group in groups if op in group["operators"])])


def by_replacement(sites: Iterable[PredictedSite]) -> dict[str, list[PredictedSite]]:
    """The sites that have a usual replacement, by its text."""
    groups: dict[str, list[PredictedSite]] = {}
    for site in sites:
        if text := replacement(site):
            groups.setdefault(text, []).append(site)
    return groups
