"""Resolved configurations kept on disk, since Snakemake reads the plan again in every process it starts."""

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from steptrace.config.digest import code_digest, config_digest
from steptrace.files import write_text

#: An environment variable in an interpolation, `${oc.env:NAME}` or `${oc.env:NAME,default}`.
_VARIABLE: Final = re.compile(rb"\$\{\s*oc\.env:\s*(\w+)")


class Composed(msgspec.Struct, frozen=True):
    """One resolved configuration without labels: its digest, as YAML text, and as plain data."""

    digest: str
    text: str
    config: dict[str, Any]

    @classmethod
    def of(cls, config: dict[str, Any]) -> "Composed":
        """The configuration with its digest and text."""
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
        return cls(digest=config_digest(config), text=text, config=config)

    def snapshot(self, *, study: str, variant: str) -> str:
        """Return the text of config.yaml: labels, then the configuration."""
        # JSON's quoted text is YAML's too.
        return f"study: {json.dumps(study)}\nvariant: {json.dumps(variant)}\ndigest: {self.digest}\n{self.text}"


class ComposeCache:
    """Composed configurations by their overrides; those of other YAML files, variables or code are forgotten.

    Args:
        folders: the configuration folders, see `steptrace.config.compose.compose`.
        directory: where the file is kept.
    """

    def __init__(self, folders: Sequence[Path], directory: Path) -> None:
        self._folders, self._path, self._key = folders, directory / "configs.json", _state_of(folders)
        self._entries: dict[str, Composed] = {}
        with suppress(OSError, msgspec.DecodeError):  # none yet, or damaged: compose again
            key, entries = msgspec.json.decode(self._path.read_bytes(), type=tuple[str, dict[str, Composed]])
            self._entries = entries if key == self._key else {}
        self._new = False

    def compose(self, overrides: Sequence[str], *, where: str) -> Composed:
        """Return the resolved configuration under `overrides`; errors as in `steptrace.config.compose.compose`."""
        key = "\n".join(overrides)
        if key not in self._entries:
            from steptrace.config.compose import compose  # imports Hydra: 0.15 s that few calls need

            self._entries[key], self._new = Composed.of(compose(self._folders, overrides, where=where)), True
        return self._entries[key]

    def save(self) -> None:
        """Write the file if there is something new."""
        with suppress(OSError):  # it saves time, no more
            if self._new:
                write_text(self._path, msgspec.json.encode((self._key, self._entries)).decode())


def _state_of(folders: Sequence[Path]) -> str:
    """A hash of all that a composition reads: the groups' files, the variables they name, our code and Hydra's."""
    parts: list[object] = [code_digest(["steptrace.config.compose", "steptrace.config.cache"])]
    parts += [importlib.metadata.version(package) for package in ("hydra-core", "omegaconf")]
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            if path.parent != folder / "study" and path != folder / "workflow.yaml":
                text = path.read_bytes()
                parts += [path.relative_to(folder), text, [os.environb.get(name) for name in _VARIABLE.findall(text)]]
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def write_if_changed(path: Path, text: str) -> bool:
    """Write `text` to `path` in one step, only if the file holds something else; return whether it was written."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass
    write_text(path, text)
    return True
