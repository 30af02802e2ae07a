"""The `_target_`s of configurations: which are allowed, and whether they exist and take the arguments they are given.

Python itself is asked, before anything is trained. Importing takes seconds and brings torch, so one process of its own
(`steptrace.config.inspect_targets`) does it for all targets of all variants, and what was found right is remembered on
disk. A mistake is never remembered: each one that is reported was looked at just now.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from steptrace.config.cache import left_if_unwritable, write_if_changed
from steptrace.config.digest import code_digest, versions
from steptrace.config.documents import lookup, read_yaml
from steptrace.config.inspect_targets import Answer, Call
from steptrace.errors import ConfigError

#: `_target_` prefixes that are always allowed; config/workflow.yaml adds the user's own in `allow_targets`.
ALLOWED: Final = ("torch.nn.", "torch.optim.", "torch.utils.data.", "steptrace.workloads.")
#: Where what such a name leads to must have been defined.
_ORIGINS: Final = ("torch.", "steptrace.")
#: What has to have a `_target_`.
_REQUIRED: Final = ("model", "loss", "data.dataset", "optimizer")
#: The keys of a `_target_` node that are Hydra's own.
_HYDRAS: Final = ("_target_", "_partial_", "_recursive_", "_convert_", "_args_")
_TIMEOUT_S: Final = 300
#: How many checked calls are remembered.
_MOST: Final = 5_000

#: What this process found right, by the digest of the call: the file of its definition, and that file's state.
_checked: dict[str, tuple[str, str]] = {}


@dataclass(frozen=True)
class Placed:
    """A call, the folders of its `python_path`, and where it stands, for messages."""

    call: Call
    folders: tuple[Path, ...]
    where: str = field(compare=False)


def targets(config: Any) -> Iterator[tuple[str, Any]]:
    """Yield every `_target_` of `config` as (dotted key, value)."""
    for key, node in _nodes(config):
        yield f"{key}._target_" if key else "_target_", node["_target_"]


def check_allowed(config: Mapping[str, Any], *, allow: Iterable[str] = (), where: str) -> None:
    """Check that every `_target_` begins with an allowed prefix, and that none of the four is missing.

    A configuration is code: whatever a `_target_` names is imported and called. The prefixes keep a YAML file from
    reaching further than its reader expects; they are no sandbox.

    Raises:
        ConfigError: naming the entry of `allow_targets` that would allow it.
    """
    for key in _REQUIRED:
        node = lookup(config, key)
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise ConfigError(f"{key} has no _target_", where=where, expected="the dotted name of a class or function")
    prefixes = (*ALLOWED, *(f"{prefix.rstrip('.')}." for prefix in allow))
    for key, target in targets(config):
        if not isinstance(target, str) or not target.startswith(prefixes):
            shown = ", ".join(prefix.rstrip(".") for prefix in prefixes)
            raise ConfigError(
                f"{key} is '{target}', which is in none of the allowed packages ({shown})",
                where=where,
                next_step=f"if you trust it, add `allow_targets: [{_package(str(target))}]` to config/workflow.yaml",
            )


def _package(target: str) -> str:
    """What to allow for a target: its whole package, but of torch and steptrace the module alone."""
    top = target.partition(".")[0]
    return target.rpartition(".")[0] if target.startswith(_ORIGINS) and target.count(".") > 1 else top


def calls_of(config: Mapping[str, Any], *, allow: Sequence[str]) -> Iterator[Call]:
    """Yield every call that a resolved configuration makes; `allow` as in `check_allowed`."""
    as_it_is: list[str] = []
    for key, node in _nodes(config):
        if node.get("_recursive_") is False:
            as_it_is.append(f"{key}.")  # its class gets what lies below as it is, and may add arguments
        complete = not node.get("_partial_") and not key.startswith(tuple(as_it_is))
        yield _call(key, node["_target_"], node, complete=complete, allow=allow)
    # Given in place of the model's own where loss and gradient are compared with the reference.
    instead = lookup(config, "equivalence.model") or {}
    yield _call("equivalence.model", config["model"]["_target_"], instead, complete=False, allow=allow)


def _call(key: str, target: Any, node: Mapping[str, Any], *, complete: bool, allow: Sequence[str]) -> Call:
    users = tuple(f"{prefix.rstrip('.')}." for prefix in allow)
    names = tuple(str(name) for name in node if name not in _HYDRAS)
    # What the user allows may have been defined anywhere; of PyTorch's modules `os` and `sys` are attributes, too.
    allowed, origins = (("",), ("",)) if str(target).startswith(users) else (ALLOWED, _ORIGINS)
    return Call(str(target), names, len(node.get("_args_") or ()), complete, key, allowed, origins)


def _nodes(node: Any, key: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every mapping with a `_target_` below a node, with its dotted key."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield key, node
        for name, value in node.items():
            yield from _nodes(value, f"{key}.{name}" if key else str(name))
    elif isinstance(node, list):
        for index, value in enumerate(node):
            yield from _nodes(value, f"{key}.{index}")


def check_calls(calls: Iterable[Placed], *, cache: Path, workdir: Path, groups: Sequence[Path]) -> None:
    """Check that what every call names can be imported and takes these arguments.

    Args:
        calls: of all variants.
        cache: the file that remembers what was found right.
        workdir: where trainings run.
        groups: the configuration folders, one of which may hold the file to name.

    Raises:
        ConfigError: the first call that would fail.
    """
    state = functools.cache(_state)
    digests = {placed: _digest(placed.call, state(placed.call.target, placed.folders)) for placed in calls}
    remembered = _read(cache) | _checked
    pending = [placed for placed, digest in digests.items() if not _holds(remembered.get(digest))]
    for placed, answer in _ask(pending, workdir):
        if answer.problem:
            where = _file_of(placed.call, answer.argument, groups) or placed.where
            raise ConfigError(answer.problem, where=where, next_step=answer.next_step)
        remembered[digests[placed]] = _checked[digests[placed]] = (str(answer.file), _stamp(answer.file))
    if len(remembered) > _MOST:
        remembered = {digest: remembered[digest] for digest in digests.values()}
    with left_if_unwritable():
        write_if_changed(cache, json.dumps(remembered))


def _digest(call: Call, state: str) -> str:
    return sha256(json.dumps([call, state]).encode()).hexdigest()[:20]


def _state(target: str, folders: tuple[Path, ...]) -> str:
    """What decides how a target can be called: its code, where that is ours or in `python_path`, else its version."""
    code = code_digest(["steptrace.config.inspect_targets", target], folders=folders)
    return f"{code} {versions([target, 'torch'])} {sys.version}"


def _read(path: Path) -> dict[str, tuple[str, str]]:
    try:
        remembered = json.loads(path.read_text(encoding="utf-8"))
        return {str(digest): (str(file), str(stamp)) for digest, (file, stamp) in remembered.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}  # none yet, or damaged: look again


def _holds(entry: tuple[str, str] | None) -> bool:
    """Whether the file of a definition is as it was when the call was found right."""
    return entry is not None and entry[1] == _stamp(entry[0])


def _stamp(file: str | None) -> str:
    try:
        status = Path(str(file)).stat()
    except OSError:
        return ""  # compiled into the interpreter
    return f"{status.st_mtime_ns}-{status.st_size}"


def _ask(pending: Sequence[Placed], workdir: Path) -> Iterator[tuple[Placed, Answer]]:
    """Every call with its answer, from one process for all of them."""
    groups: dict[tuple[Path, ...], list[Placed]] = {}
    for placed in pending:
        groups.setdefault(placed.folders, []).append(placed)
    if not groups:
        return
    question = [[[str(folder.resolve()) for folder in key], [each.call for each in g]] for key, g in groups.items()]
    # Modules are searched where this process searches them, and in the working directory.
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "steptrace.config.inspect_targets"]
    try:
        done = subprocess.run(
            command, input=json.dumps(question), capture_output=True, text=True, timeout=_TIMEOUT_S,
            cwd=workdir, env=environment,
        )  # fmt: skip
        answers = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError) as error:
        output = [str(error)] if isinstance(error, subprocess.TimeoutExpired) else done.stderr.splitlines()
        names = ", ".join(dict.fromkeys(placed.call.target for placed in pending))
        raise ConfigError(
            f"importing what `_target_` names ended without an answer: {output[-1] if output else error}",
            next_step=f"import them one by one in the working directory: {names}",
        ) from error
    for group, found in zip(groups.values(), answers, strict=True):
        yield from zip(group, (Answer(*each) for each in found), strict=True)


def _file_of(call: Call, argument: str | None, groups: Sequence[Path]) -> str | None:
    """The file of a group that gives an argument; None where an override does."""
    group, _, rest = call.key.partition(".")
    for path in (path for folder in groups for path in sorted((folder / group).glob("*.yaml"))):
        document = read_yaml(path)
        node = lookup(document, rest) if rest else document
        if isinstance(node, Mapping) and node.get("_target_") == call.target and argument in node:
            return str(path)
    return None
