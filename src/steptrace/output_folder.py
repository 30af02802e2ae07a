"""Folders that commands write their results to: only files that a command has written are ever replaced.

`.steptrace.json` in such a folder lists the files that commands have written there. A later call removes files of that
list and no others, each by its name. Anything else that stands where a result has to go is refused with its name,
before anything is written. Symlinks are never followed.
"""

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Final, Self

from steptrace.errors import RecordError, SteptraceError
from steptrace.files import read_versioned, remove_tree, write_versioned

#: The list of the files that commands have written to a folder.
LIST_FILE: Final = ".steptrace.json"
_FILES = "files"
_SCRATCH = "unfinished"
#: The most inputs that appear in a folder's name, and the most letters that they take in it.
_MOST_IN_NAME: Final = 2
_LONGEST_STEM: Final = 60
#: Things in the way that a message names.
_MOST_NAMED: Final = 5
_SCRATCH_PREFIX: Final = ".steptrace-unfinished."


#: Endings of the files that commands read, which the name of a result's folder leaves out.
_ENDINGS: Final = (".gz", ".json", ".pickle", ".pt.trace")


def folder_named_after(inputs: Sequence[str | Path], ending: str) -> Path:
    """The folder in the current one that a command writes to where none is named: `vit.json.gz` -> `vit-analysis`.

    It is not beside the input: traces are often kept where nothing else should be written.

    Args:
        inputs: files or folders that the command reads.
        ending: what the folder holds, the last part of its name.
    """
    stems = []
    for path in inputs:
        name = Path(path).resolve().name
        for known in _ENDINGS:
            name = name.removesuffix(known)
        stems.append(name)
    stem = "-".join(dict.fromkeys(filter(None, stems))) if len(stems) <= _MOST_IN_NAME else f"{stems[0]}-and-more"
    return Path(f"{stem[:_LONGEST_STEM]}-{ending}".lstrip("-"))


class OutputFolder:
    """A folder that a command writes to; use it in a `with` block.

    Nothing is written before the block begins, and a folder that is still empty at its end is removed again.

    Args:
        path: the folder, made if it is missing.
        writes: the names in it that the command writes; a name that ends in `/` is a folder.
        by: the command, for messages: `steptrace run`.
        whole: refuse a folder that holds anything, unless a command has written to it before.

    Raises:
        SteptraceError: something else is in the way, which the message names.

    Example:
        with OutputFolder(Path("diff"), ["diff.json"], by="steptrace diff") as folder:
            folder.file("diff.json").write_text("{}")
    """

    def __init__(self, path: Path, writes: Sequence[str], *, by: str, whole: bool = False) -> None:
        self.path = path
        self._writes = tuple(writes)
        self._by = by
        self._whole = whole
        self._files: dict[str, None] = {}  # an ordered set
        self._scratch: dict[str, None] = {}
        self._missing: list[Path] = []

    def __enter__(self) -> Self:
        refuse_other_than_folder(self.path)
        self._read_list()
        if self._whole and not os.path.lexists(self.path / LIST_FILE):
            first = next(iter(sorted(self.path.iterdir())), None) if self.path.exists() else None
            if first is not None:
                raise in_the_way([first], by=self._by, expected="a folder that is new, empty or from an earlier call")
        self._refuse_foreign(*self._writes)
        self._missing = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        self.path.mkdir(parents=True, exist_ok=True)
        for name in [name for name in self._scratch if not _is_used(name)]:
            remove_tree(self.path / name)
            del self._scratch[name]
        return self

    def __exit__(self, *_: object) -> None:
        if not self._files and not self._scratch:
            (self.path / LIST_FILE).unlink(missing_ok=True)
        for folder in self._missing:
            with suppress(OSError):  # it holds something
                folder.rmdir()

    def file(self, name: str) -> Path:
        """The path of a result that is written next; from now on the file is in the list.

        Raises:
            SteptraceError: something else has come in the way since the block began.
        """
        self._refuse_foreign(name)
        if name not in self._files:
            self._files[name] = None
            self._write_list()
        return self.path / name

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A new folder inside this one for unfinished results; it is removed with all that is left in it."""
        name = f"{_SCRATCH_PREFIX}{os.getpid()}.{os.urandom(8).hex()}"
        self._scratch[name] = None
        self._write_list()  # what a killed process leaves is removed by the next call
        folder = self.path / name
        try:
            folder.mkdir(mode=0o700)
            yield folder
        finally:
            remove_tree(folder)
            del self._scratch[name]
            with suppress(OSError):  # a full disk: the error that led here says so
                self._write_list()

    def put(self, source: Path, name: str) -> Path:
        """Move a finished folder to the place of `name`; the earlier files there are removed.

        Returns:
            Its new path.

        Raises:
            SteptraceError: something else is in the way; nothing is moved or removed.
        """
        new = [f"{name}/{file.relative_to(source).as_posix()}" for file in sorted(source.rglob("*")) if file.is_file()]
        self._refuse_foreign(f"{name}/", *new)
        self._files |= dict.fromkeys(new)
        self._write_list()
        self._remove([file for file in self._files if file.startswith(f"{name}/")])
        for file in new:
            target = self.path / file
            target.parent.mkdir(parents=True, exist_ok=True)
            (source / PurePosixPath(file).relative_to(name)).replace(target)
        self._files |= dict.fromkeys(new)
        self._write_list()
        (self.path / name).mkdir(exist_ok=True)
        return self.path / name

    def remove_earlier(self, *names: str) -> None:
        """Remove what earlier calls wrote under these names; default: under all that this command writes."""
        chosen = [name for name in self._files if _is_below(name, names or self._writes)]
        if chosen:
            self._remove(chosen)
            self._write_list()

    def _remove(self, names: Iterable[str]) -> None:
        """Remove listed files, and the folders that are then empty."""
        for name in list(names):
            (self.path / name).unlink(missing_ok=True)
            del self._files[name]
            for folder in list(PurePosixPath(name).parents)[:-1]:
                with suppress(OSError):  # it holds something, or is gone
                    (self.path / folder).rmdir()

    def _refuse_foreign(self, *names: str) -> None:
        """Raise if something that no command has written is at these names, or on the way to them.

        So does a symlink, or a folder, in the place of a file that a command has written.
        """
        foreign = dict.fromkeys(path for name in names for path in self._foreign(name))
        if foreign:
            raise in_the_way(list(foreign), by=self._by)

    def _foreign(self, name: str) -> Iterator[Path]:
        target = self.path / name
        listed = [file for file in self._files if _is_below(file, [name])]
        yield from _no_folders_above(self.path, [name, *listed])
        if os.path.lexists(target):
            is_folder = stat.S_ISDIR(target.lstat().st_mode)
            is_empty = is_folder and not any(target.iterdir())
            if is_folder != name.endswith("/") or not (listed or is_empty):
                yield target
        for file in listed:
            path = self.path / file
            if os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
                yield path

    def _read_list(self) -> None:
        path = self.path / LIST_FILE
        if not os.path.lexists(path):
            return
        if not stat.S_ISREG(path.lstat().st_mode):
            raise in_the_way([path], by=self._by)
        try:
            content = read_versioned(path)
        except RecordError as error:  # damaged, or of another version
            error.next_step = f"remove it, and from {self.path} what {self._by} wrote there; or choose another folder"
            raise
        for key, target in ((_FILES, self._files), (_SCRATCH, self._scratch)):
            names = content.get(key)
            if not isinstance(names, list) or not all(map(_is_inside, names)):
                raise in_the_way([path], by=self._by)
            target.update(dict.fromkeys(names))
        self._scratch = {name: None for name in self._scratch if name.startswith(_SCRATCH_PREFIX) and "/" not in name}

    def _write_list(self) -> None:
        write_versioned(self.path / LIST_FILE, {_FILES: sorted(self._files), _SCRATCH: sorted(self._scratch)})


def refuse_other_than_folder(path: Path) -> None:
    """Raise `SteptraceError` if a path is a symlink, or something else than a folder; it may be missing."""
    if path.is_symlink():
        target = os.path.realpath(path)
        raise SteptraceError("is a symlink, which is not followed", where=path, next_step=f"name its target: {target}")
    if os.path.lexists(path) and not path.is_dir():
        raise SteptraceError("exists, and is not a folder", where=path, next_step="choose another folder")


def require_empty(path: Path) -> None:
    """Raise `SteptraceError` unless a folder is missing or empty; a symlink is refused, too."""
    refuse_other_than_folder(path)
    first = next(iter(sorted(path.iterdir())), None) if path.exists() else None
    if first is not None:
        expected = "a folder that is new or empty"
        raise SteptraceError("holds something", where=first, expected=expected, next_step="choose another folder")


def require_free(folder: Path, names: Iterable[str | Path]) -> None:
    """Raise `SteptraceError` if one of these files is there, or a symlink or a file stands on the way to it."""
    refuse_other_than_folder(folder)
    names = list(names)
    present = [str(folder / name) for name in names if os.path.lexists(folder / name)]
    if present:
        raise SteptraceError(
            f"{', '.join(present)} exist{'s' if len(present) == 1 else ''} already",
            where=folder,
            expected="a folder without these files",
            next_step="name another folder",
        )
    if other := list(dict.fromkeys(_no_folders_above(folder, map(str, names)))):
        raise in_the_way(other, by=None)


def in_the_way(paths: Sequence[Path], *, by: str | None, expected: str | None = None) -> SteptraceError:
    """The error about things that no command has written and that stand where results have to go."""
    shown = ", ".join(map(str, paths[:_MOST_NAMED])) + (f" and {n} more" if (n := len(paths) - _MOST_NAMED) > 0 else "")
    exist = "exists" if len(paths) == 1 else "exist"
    written = (
        f"{exist} already"
        if by is None
        else f"{exist}, but {'was' if len(paths) == 1 else 'were'} not written by `{by}`"
    )
    next_step = "choose another folder, or move it away"
    return SteptraceError(f"{written}; nothing was changed", where=shown, expected=expected, next_step=next_step)


def _no_folders_above(folder: Path, names: Iterable[str]) -> Iterator[Path]:
    """What stands between a folder and files in it, and is no folder itself: a file, a symlink."""
    for name in names:
        for above in reversed(list(PurePosixPath(name).parents)[:-1]):
            path = folder / above
            if path.is_symlink() or (os.path.lexists(path) and not path.is_dir()):
                yield path


def _is_below(file: str, names: Iterable[str]) -> bool:
    return any(file == name or (name.endswith("/") and file.startswith(name)) for name in names)


def _is_inside(name: object) -> bool:
    """Whether a name of a list leads to a file inside its folder."""
    if not isinstance(name, str):
        return False
    path = PurePosixPath(name)
    return bool(path.parts) and not path.is_absolute() and ".." not in path.parts and path.as_posix() == name


def _is_used(scratch: str) -> bool:
    """Whether the process that made a folder for unfinished results still runs."""
    try:
        os.kill(int(scratch.removeprefix(_SCRATCH_PREFIX).partition(".")[0]), 0)
    except ValueError:
        return True
    except OSError as error:
        return isinstance(error, PermissionError)
    return True
