"""The usual replacement of an operation that makes the host wait, and when it does not pay (replacements.toml)."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from steptrace.documents.syncs import PredictedSite, SiteRow, is_batch_copy
from steptrace.torch_names import SYNC_BATCH_NORM

#: The texts: `operators` and `kinds` by name, `special` ones, and `counter_checks`.
WORDS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))

_DDP_LABEL: Final = "DistributedDataParallel.forward"
#: Operators that read a value on the host. The operators of `unique` read the number of distinct values so.
_VALUES: Final = frozenset(WORDS["counter_checks"]["added"]["values"]["operators"])
_UNIQUE: Final = re.compile(r"\bunique(_consecutive)?\(")

#: Kinds of syncs whose texts are about copies from the host.
_COPIES: Final = ("aten::_to_copy", "aten::to")
_INDEXING: Final = ("aten::index", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_")
#: An index in square brackets, and calls that copy to the device.
_SUBSCRIPT: Final = re.compile(r"[\w)\]]\[[^\]]")
_EXPLICIT_COPY: Final = re.compile(r"\.(to|cuda|copy_)\(|\b(as_)?tensor\(|\b\w*Tensor\(|from_numpy\(|\bdevice\s*=")
#: A call that writes a file: torch.save, save_file of safetensors, save_pretrained, pickle.dump.
_SAVES: Final = re.compile(r"\bsave(_\w+)?\(|\bpickle\.dumps?\(")
_DISTRIBUTIONS: Final = (
    "Bernoulli|Beta|Binomial|Categorical|Cauchy|Dirichlet|Exponential|Gamma|Geometric|Gumbel|Independent|Laplace|"
    "LogNormal|MixtureSameFamily|Multinomial|MultivariateNormal|NegativeBinomial|Normal|OneHotCategorical|Poisson|"
    "StudentT|TransformedDistribution|Uniform|VonMises"
)
#: Calls that read a value inside PyTorch, by name in `special`.
_INSIDE: Final = {
    "distributions": re.compile(rf"\.(log_prob|cdf|icdf)\(|\bdistributions\.\w+\(|\b({_DISTRIBUTIONS})\("),
    # The message of a check is formatted only if it fails.
    "asserted": re.compile(r"^\s*(assert\b|(el)?if\b.*:\s*raise\b)(?!.*\.(item|tolist)\()"),
    "scaler": re.compile(r"scaler\w*\.(step|update)\(", re.IGNORECASE),
    "formatted": re.compile(
        r"""\b(rf|fr|f)["']|["']\s*%|%\s*self\.args\b|\.format\(|\bprint\(|\b(str|repr)\(""", re.IGNORECASE
    ),
}
#: A line that moves a tensor that is there, as libraries move a batch. Others in these files make a tensor.
_MOVES: Final = re.compile(r"\.(to|cuda)\(")
#: The ends of the names of library files that copy batches, each with the name in `special` of the setting for it.
_LIBRARIES: Final = {
    "accelerate/utils/operations.py": "accelerate",
    "lightning/fabric/utilities/apply_func.py": "lightning",
    "lightning_fabric/utilities/apply_func.py": "lightning",
}
#: Texts that name an option, so that they fit a line in a library, too.
_OPTIONS: Final = (
    *("accelerate", "lightning", "unused_parameters", "ddp_timing", "sync_batch_norm"),
    *("batch_copy", "batch_copy_pinned"),
)
#: DistributedDataParallel copies to the host at the end of a backward pass; the line is the one that called it.
_BACKWARD: Final = re.compile(r"\bbackward\(")
#: Operators that wait on a stream where they join the entries of a sparse matrix.
_SPARSE_PRODUCTS: Final = ("aten::mm", "aten::mv", "aten::addmm", "aten::_sparse_mm", "aten::_sparse_addmm")
#: A product of all elements, or of all up to each, whose gradient PyTorch computes in another way where one is zero.
_PRODUCT: Final = re.compile(r"\b(cum)?prod\(")
#: A read of a value that stands there, whatever is formatted.
_READ: Final = re.compile(r"\.(item|tolist)\(")


def operation(site: SiteRow) -> str:
    """The operator that the program called: a boolean index looks for its true elements by `aten::nonzero`.

    The operators of `unique` read the number of distinct values as `item` does, under its name.
    """
    op = site.op or ""
    code = site.code or ""
    if op in _VALUES and _UNIQUE.search(code):
        return "aten::unique_consecutive" if "unique_consecutive" in code else "aten::_unique2"
    return "aten::index" if op == "aten::nonzero" and "[" in code and "nonzero" not in code else op


def replacement(site: SiteRow) -> tuple[str, ...] | None:
    """The usual replacement of the operation at a site; None if there is no usual one.

    The first text says in one sentence what to do, the others give further facts.
    """
    entry = _entry(site)
    if entry is None:
        return None
    group, name = _shared(entry)
    to_do, *more = WORDS[group][name]
    if _is_in_library(site, name):
        to_do = WORDS["special"]["library"].format(text=to_do)
    return to_do, *more


def _is_in_library(site: SiteRow, name: str) -> bool:
    """Whether a text must say that the line is in a library; one that names an option fits such a line as it is."""
    return name not in _OPTIONS and site.program is not None


def _shared(entry: tuple[str, str]) -> tuple[str, str]:
    """The entry that holds the text of an entry: often itself."""
    group, name = entry
    text = WORDS[group][name]
    if isinstance(text, list):
        return entry
    group, _, name = text["same_as"].partition(".")
    return group, name


def replacement_code(site: SiteRow) -> str | None:
    """The code of the usual replacement, such as `operators.aten::nonzero`: its place in replacements.toml."""
    entry = _entry(site)
    return None if entry is None else ".".join(entry)


def _entry(site: SiteRow) -> tuple[str, str] | None:
    """The group and the name of the text in replacements.toml; None if there is none for this site."""
    kind = site.kind or ""
    special = _special(site)
    if _is_pinned(site) and f"{special or 'copy'}_pinned" in WORDS["special"]:
        special = f"{special or 'copy'}_pinned"
    if special is not None:
        return "special", special
    if kind == "d2h_copy" and site.op in _COPIES:
        return "kinds", kind
    if (op := operation(site)) in WORDS["operators"]:
        return "operators", op
    name = next((name for name in WORDS["kinds"] if kind.endswith(name)), None)
    return None if name is None else ("kinds", name)


def _is_pinned(site: SiteRow) -> bool:
    """Whether a copy to the device comes from pinned memory, as far as that is known."""
    return isinstance(site, PredictedSite) and bool(site.pinned)


def _special(site: SiteRow) -> str | None:
    """The name of the text for a site whose operator alone does not say what to change."""
    if is_batch_copy(site.file, site.label, site.kind):
        return "batch_copy"
    if _is_ddp_timing(site):
        return "ddp_timing"
    if site.label == SYNC_BATCH_NORM:
        return "sync_batch_norm"
    code = site.code or ""
    if site.kind == "h2d_copy" and (not code or _MOVES.search(code) is not None):
        of_library = next((name for end, name in _LIBRARIES.items() if (site.file or "").endswith(end)), None)
        if of_library is not None:
            return of_library
    if site.kind == "d2h_copy" and site.op not in _VALUES and _SAVES.search(code):
        return "saved"
    is_backward = _BACKWARD.search(code) is not None and _EXPLICIT_COPY.search(code) is None
    if site.kind == "d2h_copy" and site.op == "aten::copy_" and is_backward:
        return "unused_parameters"
    if site.kind == "h2d_copy" and (site.op in _INDEXING or (site.op in _COPIES and _indexes_from_host(code))):
        return "from_host"
    if site.kind == "h2d_copy" and "pack_padded_sequence(" in code and _EXPLICIT_COPY.search(code) is None:
        return "lengths"
    if site.phase == "backward" and site.kind == "d2h_copy" and (site.op in _INDEXING or operation(site) in _INDEXING):
        return "mask_backward"
    if site.kind == "stream" and site.op in _SPARSE_PRODUCTS:
        return "sparse_backward" if site.phase == "backward" else "sparse"
    if site.phase == "backward" and site.op in _VALUES and _PRODUCT.search(code):
        return "product_backward"
    if site.op in _VALUES:
        inside = (name for name, called in _INSIDE.items() if called.search(code))
        return next((name for name in inside if name != "formatted" or not _READ.search(code)), None)
    return None


def _indexes_from_host(code: str) -> bool:
    """Whether a line copies nothing to the device but the index between its square brackets."""
    return _SUBSCRIPT.search(code) is not None and _EXPLICIT_COPY.search(code) is None


def _is_ddp_timing(site: SiteRow) -> bool:
    return site.label == _DDP_LABEL and (site.kind or "").endswith("EventSynchronize")


def counter_check(site: SiteRow) -> str:
    """The check that would show that the replacement does not pay at this site."""
    op = operation(site)
    checks = WORDS["counter_checks"]
    if _is_ddp_timing(site):
        return str(checks["ddp_timing"])
    if _special(site) in ("unused_parameters", "sync_batch_norm"):
        return str(checks["any"])
    if not op and (site.kind or "").endswith("_copy"):
        op = "aten::copy_"
    groups = (group for name, group in checks["added"].items() if name != "copies" or not _is_pinned(site))
    return " ".join([checks["any"], *(group["text"] for group in groups if op in group["operators"])])


def by_replacement(sites: Iterable[PredictedSite]) -> list[list[PredictedSite]]:
    """The sites that have a usual replacement, those with the same one together."""
    groups: dict[tuple[str, str, bool], list[PredictedSite]] = {}
    for site in sites:
        entry = _entry(site)
        if entry is not None:
            group, name = _shared(entry)
            groups.setdefault((group, name, _is_in_library(site, name)), []).append(site)
    return list(groups.values())
