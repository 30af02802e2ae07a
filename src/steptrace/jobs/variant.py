"""One run of a study's variant: its command, the settings of its probe, and its files. Imports no torch."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from steptrace.config.resolved import CommandConfig, TrainingConfig, resolved_config
from steptrace.config.yaml_file import read_yaml
from steptrace.engine.files import trace_fault, write_files
from steptrace.errors import LaunchError
from steptrace.launch.result import Launched, ended, require_steps, why, write_results
from steptrace.launch.settings import LaunchSettings
from steptrace.words.notes import note_text

_MIB: Final = 2**20


@dataclass(frozen=True)
class VariantRun:
    """One repeat of one variant.

    Attributes:
        path: the file of the variant's resolved configuration.
        document: the content of that file, as plain data.
        config: the same, typed.
        repeat: number of the repeat, from 0.
    """

    path: Path
    document: Mapping[str, Any]
    config: TrainingConfig | CommandConfig
    repeat: int

    @classmethod
    def read(cls, path: Path, repeat: int = 0) -> "VariantRun":
        """Read a variant's configuration.

        Raises:
            ConfigError: it cannot be read, lacks a key, or holds a value of the wrong type.
        """
        document = read_yaml(path)
        return cls(path, document, resolved_config(document, path), repeat)

    @property
    def seed(self) -> int:
        """The seed of this repeat."""
        return self.config.seed + self.repeat

    @property
    def command(self) -> list[str]:
        """The command that trains it, word by word."""
        if isinstance(self.config, CommandConfig):
            return command_of(self.config, self.seed)
        program = ["-m", "steptrace.lab", str(self.path), "--repeat", str(self.repeat)]
        return [sys.executable, *launcher(self.config.ranks), *program]

    @property
    def cwd(self) -> Path | None:
        """The folder in which it starts; None: this process's folder."""
        return Path(self.config.program.cwd).resolve() if isinstance(self.config, CommandConfig) else None

    @property
    def environment(self) -> dict[str, str]:
        """Its environment variables, in addition to those of this process."""
        return self.config.program.env if isinstance(self.config, CommandConfig) else {}

    def probe(self, out: Path) -> LaunchSettings:
        """The settings of its probe, which writes into `out`."""
        scale = self.config.scale
        settings = LaunchSettings(
            str(out), warmup=scale.warmup_steps, steps=scale.timed_steps, at_most_s=scale.at_most_s
        )
        if isinstance(self.config, CommandConfig):
            return replace(settings, profile=self.config.profile.active)
        window = self.config.profile
        return replace(
            settings,
            profile=window.active if self.config.explains(self.repeat) else 0,
            profile_warmup=window.warmup,
            stacks=window.with_stack,
            shapes=window.record_shapes,
            memory=window.profile_memory,
        )

    def has_ended_well(self, launched: Launched) -> bool:
        """Whether the way in which the program ended is no failure.

        A program that is not ours is ended by the probe after its last measured step, so its exit code means nothing.
        """
        is_ended_by_probe = isinstance(self.config, CommandConfig) and launched.complete
        return launched.exit_code == 0 or launched.stopped is not None or is_ended_by_probe

    def write(self, launched: Launched, run_dir: Path) -> None:
        """Write the files of the run.

        Raises:
            LaunchError: the program ended before its measurement was complete, or a trace is missing.
        """
        require_steps(launched)
        if not launched.complete:
            raise LaunchError(
                f"the program ended before its steps were measured: {ended(launched)}",
                where=" ".join(self.command),
                next_step=why(launched) if launched.failed else "if it trains for fewer steps, set `steps` lower",
            )
        labels = {key: self.document[key] for key in ("study", "variant", "digest")}
        labels |= {"repeat": self.repeat, "seed": self.seed, "scale": self.config.scale.name}
        if isinstance(self.config, CommandConfig):
            write_results(launched, run_dir, self.document["program"], **labels)
        else:
            self._write_training(launched, run_dir, self.config, labels)

    def _write_training(
        self, launched: Launched, run_dir: Path, config: TrainingConfig, labels: dict[str, Any]
    ) -> None:
        for rank in launched.ranks:
            if (fault := trace_fault(rank.trace)) is not None:
                raise LaunchError(note_text(fault), where=run_dir)
        limit_mb = config.scale.memory_limit_mb
        write_files(
            launched.ranks,
            launched.out,
            run_dir,
            {**labels, "config": dict(self.document)},
            batch_size=config.data.batch_size,
            limit_bytes=None if limit_mb is None else limit_mb * _MIB,
        )


def launcher(ranks: int) -> list[str]:
    """The words between `python` and `-m MODULE` that start so many ranks on this machine; none for a single rank.

    Only the loopback's address is used, so the machine needs no network.
    """
    if ranks == 1:
        return []
    local = ["--standalone", "--local-addr", "127.0.0.1"]
    return ["-m", "steptrace.lab.torchrun", *local, "--nproc-per-node", str(ranks)]


def command_of(config: CommandConfig, seed: int) -> list[str]:
    """The words of a program's command, with the seed in place of `{seed}`."""
    return [word.replace("{seed}", str(seed)) for word in config.program.command]
