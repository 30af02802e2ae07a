"""Resolved configurations kept on disk, since Snakemake reads the plan again in every process it starts."""

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from steptrace.config.digest import code_digest, config_digest
from steptrace.errors import ConfigError
from steptrace.files import UNWRITABLE, write_text

if TYPE_CHECKING:
    from steptrace.config.compose import Composer

#: An environment variable in an interpolation, `${oc.env:NAME}` or `${oc.env:NAME,default}`.
_VARIABLE = re.compile(rb"\$\{\s*oc\.env:\s*(\w+)")
_NO_PLACES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Composed:
    """One resolved configuration without labels: as plain data, as YAML text, and its digest."""

    digest: str
    text: str
    config: dict[str, Any]

    def snapshot(self, *, study: str, variant: str) -> str:
        """Return the text of config.yaml: labels, then the configuration."""
        # JSON's quoted text is YAML's too.
        return f"study: {json.dumps(study)}\nvariant: {json.dumps(variant)}\ndigest: {self.digest}\n{self.text}"


class ComposeCache:
    """A cache of composed configurations in a file; its name is a hash of the YAML files, variables and code used.

    Args:
        folders: the configuration folders, see `Composer`.
        directory: where the file is kept.
        allow: `_target_` prefixes the user allows.
    """

    def __init__(self, folders: Sequence[Path], directory: Path, *, allow: Iterable[str] = ()) -> None:
        self._folders = folders
        self._allow = tuple(allow)
        self._path = directory / f"configs-{self._key()}.json"
        self._entries = self._load()
        self._new = False
        self._composer: Composer | None = None

    def compose(self, overrides: Sequence[str], *, where: str, places: Mapping[str, str] = _NO_PLACES) -> Composed:
        """Return the resolved and checked configuration under `overrides`; errors as in `Composer.compose`."""
        key = json.dumps(list(overrides))
        if key not in self._entries:
            self._entries[key] = self._compose(overrides, where, places)
            self._new = True
        return self._entries[key]

    def save(self) -> None:
        """Write new entries to the file, and remove the files of other hashes."""
        if not self._new:
            return
        entries = {key: asdict(entry) for key, entry in self._entries.items()}
        with left_if_unwritable():
            write_if_changed(self._path, json.dumps(entries))
            for old in self._path.parent.glob("configs-*.json"):
                if old != self._path:
                    old.unlink(missing_ok=True)
        self._new = False

    def _compose(self, overrides: Sequence[str], where: str, places: Mapping[str, str]) -> Composed:
        # Importing Hydra takes 0.15 s, which a run with nothing to do should not pay.
        from steptrace.config.compose import Composer
        from steptrace.config.keys import check_config

        if self._composer is None:
            self._composer = Composer(self._folders)
        config = self._composer.compose(overrides, where=where, places=places)
        try:
            check_config(config, allow=self._allow, where=where)
        except ConfigError as error:
            error.where = _place_of(error, overrides, places) or error.where
            raise
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True, width=120)
        return Composed(digest=config_digest(config), text=text, config=config)

    def _key(self) -> str:
        state = hashlib.sha256(code_digest(["steptrace.config.compose", "steptrace.config.cache"]).encode())
        for package in ("hydra-core", "omegaconf"):
            state.update(importlib.metadata.version(package).encode())
        state.update(repr(self._allow).encode())
        for folder in self._folders:
            for path in sorted(folder.rglob("*.yaml")):
                text = path.read_bytes()
                state.update(f"{path.relative_to(folder)}\0".encode() + text + b"\0")
                for name in _VARIABLE.findall(text):
                    state.update(name + b"\0" + repr(os.environb.get(name)).encode() + b"\0")
        return state.hexdigest()[:16]

    def _load(self) -> dict[str, Composed]:
        try:
            entries = json.loads(self._path.read_text(encoding="utf-8"))
            return {key: Composed(**entry) for key, entry in entries.items()}
        except (OSError, ValueError, TypeError, AttributeError):
            return {}  # none yet, or damaged: compose again


def _place_of(error: ConfigError, overrides: Sequence[str], places: Mapping[str, str]) -> str | None:
    """The place of the last override of a key that an error names, if it is not the variant's own."""
    named = error.what.replace("'", " ").split()
    by_key = {override.lstrip("+~").partition("=")[0]: override for override in overrides}
    override = next((by_key[key] for key in named if key in by_key), "")
    return f"{places[override]}, override '{override}'" if override in places else None


def write_if_changed(path: Path, text: str) -> bool:
    """Write `text` to `path` in one step, only if the file holds something else; return whether it was written."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return False
    except (OSError, UnicodeDecodeError):
        pass
    write_text(path, text)
    return True


@contextmanager
def left_if_unwritable() -> Iterator[None]:
    """Around the writing of what saves the next call time: where this user may not write, it is left."""
    try:
        yield
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
