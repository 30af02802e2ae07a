"""The resolved configuration of one variant, as the plan writes it and its processes read it.

A variant is a training by our own program (`TrainingConfig`), or any other program (`CommandConfig`).
"""

from pathlib import Path
from typing import Any, Final

import msgspec

from steptrace.config.convert import convert
from steptrace.config.schema import RootConfig
from steptrace.config.variant_kind import COMMAND, kind_of
from steptrace.config.yaml_file import read_yaml

#: Beside a variant's config.yaml: the same variant at the scale of a GPU.
GPU_CONFIG: Final = "config.gpu.yaml"


class TrainingConfig(RootConfig, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variant that our own training program runs, with the names that the plan gave it."""

    study: str
    variant: str
    digest: str

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return self.distributed.world_size

    def explains(self, repeat: int) -> bool:
        """Whether a repeat is profiled and watched, beyond its step times."""
        return self.profile.repeats is None or repeat < self.profile.repeats


class Command(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A program of a study of commands: its command, and digests of the code that it executes."""

    command: list[str]
    env: dict[str, str]
    cwd: str
    files: str
    packages: str | None


class CommandScale(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of a program's steps are timed, and how many come before them."""

    name: str
    warmup_steps: int
    timed_steps: int
    at_most_s: float


class CommandProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of a program's steps are profiled."""

    warmup: int
    active: int


class CommandChecks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many of a program's steps are followed for a prediction, and how many are compared with the baseline."""

    predicted_steps: int | None
    compared_steps: int


class CommandRanks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How many processes a program starts that train together."""

    world_size: int


class CommandConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A variant that is any other program, with the names that the plan gave it."""

    study: str
    variant: str
    digest: str
    program: Command
    seed: int
    device: str
    scale: CommandScale
    profile: CommandProfile
    followed: CommandChecks
    distributed: CommandRanks

    @property
    def ranks(self) -> int:
        """How many processes train together."""
        return self.distributed.world_size


def resolved_config(document: dict[str, Any], where: str | Path) -> TrainingConfig | CommandConfig:
    """The configuration that a mapping holds.

    Raises:
        ConfigError: a key is missing or unknown, or a value has the wrong type.
    """
    if kind_of(document) is COMMAND:
        return convert(document, CommandConfig, where=where)
    return convert(document, TrainingConfig, where=where)


def read_config(path: Path) -> TrainingConfig | CommandConfig:
    """The resolved configuration in a file.

    Raises:
        ConfigError: it cannot be read, lacks a key, or holds a value of the wrong type.
    """
    return resolved_config(read_yaml(path), path)


def read_training(path: Path) -> TrainingConfig:
    """The resolved configuration of a training of ours.

    Raises:
        ConfigError: it cannot be read, lacks a key, or holds a value of the wrong type.
    """
    return convert(read_yaml(path), TrainingConfig, where=path)


def read_command(path: Path) -> CommandConfig:
    """The resolved configuration of a program that is not ours.

    Raises:
        ConfigError: it cannot be read, lacks a key, or holds a value of the wrong type.
    """
    return convert(read_yaml(path), CommandConfig, where=path)
