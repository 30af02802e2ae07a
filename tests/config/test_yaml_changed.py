"""Changed YAML of each kind of file: it is read, or refused with one message that names the file.

STEPTRACE_SOAK_YAML: changed files of each kind in `make soak`, 500 unless given. Each trial's seed is its number.
"""

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from steptrace.config.compose import compose
from steptrace.config.digest import Cache
from steptrace.config.plan import make_plan
from steptrace.config.resolved import TrainingConfig, read_config
from steptrace.config.settings import Project, read_settings
from steptrace.config.study import Composer, load_study
from steptrace.errors import ConfigError
from steptrace.lab.setup import load_config

ROOT = Path(__file__).parents[2]
SOAK = int(os.environ.get("STEPTRACE_SOAK_YAML", "500"))
FEW = 20
#: Values that take the place of others.
VALUES = (
    ".nan", "-.inf", "1e400", "9" * 400, "0x" + "f" * 90, "null", "[]", "{}", "[[[]]]", "{a: {b: c}}", "!!binary aGk=",
    "!!set {a, b}", "2024-02-30", "true", "''", '"\\0"', "'{x}'", "'${a}'", "'${oc.env:HOME}'", "${", "*a", "&a [*a]",
    "<<: {a: 1}",
    "-dash", "'a: b'", "\u2028", "\U0001f600", "é", "x" * 300, "-1", "1_000", "0o17", "12:30:45", "~", "?",
)  # fmt: skip
STUDY = """title: Tiny
baseline: plain
question: Why?
overrides: [seed=1]
scales: {cpu: [data.batch_size=2]}
reference: [loss=masked_reference, precision=fp32]
variants:
  plain: [loss=boolean_mask]
  other:
    overrides: [loss=where, "model.hidden=[8, 8]"]
    hypothesis: It is faster.
matrix: {seed: [1, 2], precision: [fp32]}
"""
COMMANDS = """title: Commands
baseline: plain
program:
  command: [python, -c, "pass", "--lr={lr}"]
  env: {A: 1, B: text}
  steps: 5
variants:
  plain: []
  other: {arguments: [--fast], env: {C: true}}
matrix: {lr: [0.1, 0.2]}
"""
SETTINGS = """studies: [masked_loss]
repeats: 3
scale: cpu
timeout_minutes: 5
allow_targets: [mine.losses]
traces: {}
estimate_gpus: [H100]
gates:
  masked_loss:
    "*":
      syncs.per_step: {at_most: 2, allow: ["losses.py:3"]}
    where:
      ratio.low: {at_least: 1.0, scale: cpu}
"""


def _settings(folder: Path, text: bytes) -> None:
    (folder / "config/workflow.yaml").write_bytes(text)
    read_settings(Project(folder, folder), {})


def _study(folder: Path, text: bytes) -> None:
    (folder / "config/study/tiny.yaml").write_bytes(text)
    settings = read_settings(Project(folder, folder), {"studies": ["tiny"], "scale": "gpu"})
    load_study("tiny", Composer(Project(folder, folder), settings, Cache(folder / "cache")))


def _plan(folder: Path, text: bytes) -> None:
    (folder / "config/workflow.yaml").write_bytes(text)
    make_plan(folder, folder)


def _group(folder: Path, text: bytes) -> None:
    (folder / "config/data/random_masks.yaml").write_bytes(text)
    compose([folder / "config"], [], where="test.yaml")


def _root(folder: Path, text: bytes) -> None:
    (folder / "config/config.yaml").write_bytes(text)
    compose([folder / "config"], [], where="test.yaml")


def _resolved(folder: Path, text: bytes) -> None:
    (folder / "resolved.yaml").write_bytes(text)
    if isinstance(read_config(folder / "resolved.yaml"), TrainingConfig):
        load_config(folder / "resolved.yaml")


#: By kind of file: what reads it, and a valid text.
KINDS: dict[str, tuple[Callable[[Path, bytes], None], str]] = {
    "settings": (_settings, SETTINGS),
    "plan": (_plan, SETTINGS),
    "study": (_study, STUDY),
    "commands": (_study, COMMANDS),
    "group": (_group, (ROOT / "config/data/random_masks.yaml").read_text()),
    "root": (_root, (ROOT / "config/config.yaml").read_text()),
    "resolved": (_resolved, yaml.safe_dump({"study": "s", "variant": "v", "digest": "d", "loss": {"_target_": "a.B"}})),
}


def changed(text: str, chance: random.Random) -> bytes:
    """The text with one to three changes."""
    for _ in range(chance.randint(1, 3)):
        lines = text.splitlines(keepends=True) or [""]
        number = chance.randrange(len(lines))
        kind = chance.randrange(9)
        if kind == 0:
            lines[number] = ""
        elif kind == 1:
            lines.insert(number, lines[chance.randrange(len(lines))])
        elif kind in (2, 3, 4):
            key, colon, _ = lines[number].partition(":")
            lines[number] = f"{key}{colon} {chance.choice(VALUES)}\n"
        elif kind == 5:
            lines[number] = chance.choice((" ", "  ", "\t", "- ")) + lines[number]
        elif kind == 6:
            place = chance.randrange(len(lines[number]) + 1)
            lines[number] = (
                lines[number][:place] + chance.choice("[]{}:&*!|>%@`'\"#,\x00\x7f\n") + lines[number][place:]
            )
        elif kind == 7:
            key, colon, rest = lines[number].partition(":")
            lines[number] = f"{key}{chance.choice(('x', '.', ' ', '/'))}{colon}{rest}"
        else:
            lines = lines[:number]
        text = "".join(lines)
    content = text.encode(errors="surrogatepass")
    if chance.random() < 0.1:
        place = chance.randrange(len(content) + 1)
        content = content[:place] + bytes(chance.randrange(256) for _ in range(3)) + content[place:]
    return content


def _check(folder: Path, kind: str, trials: range) -> None:
    read, valid = KINDS[kind]
    outcomes = {"read": 0, "refused": 0}
    for trial in trials:
        text = changed(valid, random.Random(trial))
        try:
            read(folder, text)
            message = None
        except ConfigError as error:
            message = str(error)
        except BaseException as error:
            raise AssertionError(f"{kind} {trial}: {error!r} of {text!r}") from error
        outcomes["read" if message is None else "refused"] += 1
        assert message is None or (".yaml" in message and len(message) < 3_000), (kind, trial, message, text)
    sys.stdout.write(f"\n{kind}: {outcomes['read']} read, {outcomes['refused']} refused\n")
    assert outcomes["refused"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_changed_files(copy: Path, kind: str) -> None:
    _check(copy, kind, range(FEW))


@pytest.mark.slow
@pytest.mark.timeout(0)
@pytest.mark.parametrize("kind", KINDS)
def test_many_changed_files(copy: Path, kind: str) -> None:
    _check(copy, kind, range(FEW, FEW + SOAK))
