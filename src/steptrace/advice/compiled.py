"""Advice against graph breaks and recompilations (compiled.toml)."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from steptrace.documents.compilations import GuardKind

_WORDS: Final[dict[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_BREAKS: Final[Mapping[str, list[str]]] = _WORDS["breaks"]
_GUARDS: Final[Mapping[GuardKind, list[str]]] = _WORDS["guards"]


def instead_of_break(kind: str, hints: str | None = None) -> tuple[str, ...]:
    """The advice against a graph break.

    Args:
        kind: Dynamo's own name of the reason.
        hints: what PyTorch proposes, for reasons that compiled.toml does not have.

    Returns:
        The advice: what to do in one sentence, then further facts. Empty if there is no advice.
    """
    if kind in _BREAKS:
        return tuple(_BREAKS[kind])
    return () if hints is None else (f"PyTorch proposes: {hints}",)


def against_recompilation(kind: GuardKind) -> tuple[str, ...]:
    """What keeps code from being compiled again because of such a guard: what to do, then further facts."""
    return tuple(_GUARDS[kind])
