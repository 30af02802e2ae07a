"""The syncs and branches that a budget of syncs leaves out, by a list of allowed places.

An entry of the list is `FILE:LINE`, a `FILE` or a function's name. A file is compared from its end, so `train.py` names
`src/train.py`. It is the key `allow` of a gate, and the option `--allow` of `steptrace predict`.
"""

import re
from collections.abc import Iterable, Sequence
from pathlib import PurePath

from steptrace.documents.syncs import AwaitedBranch, PredictedBranch, SiteRow

_LINE = re.compile(r"(?P<file>.+):(?P<line>\d+)")


def over_budget(sites: Iterable[SiteRow], allow: Sequence[str]) -> list[SiteRow]:
    """The sites that no entry of `allow` covers: `FILE:LINE`, `FILE` or a function's name, files by their end."""
    return [site for site in sites if not any(_allows(entry, site) for entry in allow)]


def useless(
    allow: Iterable[str], sites: Sequence[SiteRow], branches: Sequence[PredictedBranch | AwaitedBranch]
) -> list[str]:
    """The entries of `allow` that cover none of these sites and name none of these branches, as a misspelt one does."""
    places = [(branch.file, branch.line) for branch in branches]
    return [entry for entry in allow if not _names(entry, places) and not any(_allows(entry, site) for site in sites)]


def unfollowed(branches: Iterable[PredictedBranch], steps: int, allow: Sequence[str]) -> list[PredictedBranch]:
    """The branches on a step counter whose period is longer than `steps`, and that `allow` does not name.

    Their code may not have been seen. `allow` is as in `over_budget`.
    """
    return [
        branch
        for branch in branches
        if branch.every > steps and not any(_names(entry, [(branch.file, branch.line)]) for entry in allow)
    ]


def unnamed(branches: Iterable[AwaitedBranch], allow: Sequence[str]) -> list[AwaitedBranch]:
    """The lines that wait for a step counter and that `allow` (as in `over_budget`) does not name."""
    return [branch for branch in branches if not any(_names(entry, [(branch.file, branch.line)]) for entry in allow)]


def _allows(entry: str, site: SiteRow) -> bool:
    if site.file is None:
        return False
    places = [(site.file, site.line), *([] if site.program is None else [site.program])]
    if _LINE.fullmatch(entry) or "/" in entry or entry.endswith(".py"):
        return _names(entry, places)
    function = site.function or ""
    return entry in (function, function.rpartition(".")[2])


def _names(entry: str, places: Iterable[tuple[str, int | None]]) -> bool:
    """Whether an entry names one of these lines, or the file of one."""
    match = _LINE.fullmatch(entry)
    if match is not None:
        return any(line == int(match["line"]) and _is_end(match["file"], file) for file, line in places)
    return any(_is_end(entry, file) for file, _ in places)


def _is_end(name: str, file: str) -> bool:
    wanted = PurePath(name).parts
    parts = PurePath(file).parts
    return parts[-len(wanted) :] == wanted
