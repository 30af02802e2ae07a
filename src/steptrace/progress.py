"""How far a workflow has come, in lines that a person reads, and what its time went into.

`Progress` is told when jobs start and end, by `snakemake_logger_plugin_steptrace`. A line a run says which study, which
run, how many are left in it, and about how long all will take. `timing` is what results/timing.json holds.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from steptrace.format import plural, rough_duration

TIMING: Final = Path("results/timing.json")
#: Set for jobs where this is at work: their supervisors say nothing of runs that soon end well.
BRIEF: Final = "STEPTRACE_BRIEF"
#: The kinds of jobs, in the order in which they are told, by how a rule's name begins.
KINDS: Final = {
    "train": "trainings",
    "equivalence": "equivalence checks",
    "predict": "predictions",
    "analyze": "analyses",
    "compare": "pages",
    "report": "pages",
    "index": "pages",
    "verdict": "pages",
    "extension": "extension",
}
#: Seconds of the whole that a job takes (of two side by side each half), for as long as none of its kind has ended.
_GUESS_S: Final = {"trainings": 2.0, "extension": 15.0}
_ELSE_S: Final = 1.0
#: What the first of a kind takes besides: it starts the process that the others are forked from.
_START_S: Final = 2.0
_RULE: Final = re.compile(rf"(?:^|_)({'|'.join(KINDS)})(?:_(.+?))??(?:_round\d+)?\Z")


@dataclass(frozen=True)
class Job:
    """What is known of a job: its kind, its study where it has one of its own, and what it writes."""

    kind: str
    study: str | None
    wildcards: Mapping[str, str]
    output: tuple[str, ...]
    started: int


@dataclass
class Progress:
    """The jobs of one call of the workflow; times are ns of one clock, of which `now` is the last known."""

    started: int
    now: int = 0
    left: Counter[tuple[str, str | None]] = field(default_factory=Counter)
    _planned: Counter[str] = field(default_factory=Counter)
    _running: dict[int, Job] = field(default_factory=dict)
    _spans: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def plan(self, jobs: Mapping[str, int]) -> list[str]:
        """Begin with so many jobs of each rule; return what to say."""
        for rule, count in jobs.items():
            if (found := job_of(rule, {}, (), self.started)) is not None:
                self.left[found.kind, found.study] += count
        self._planned = Counter({study or "": n for (kind, study), n in self.left.items() if kind == "trainings"})
        studies = [f"{study} {count}" for study, count in self._planned.items()]
        return [f"{plural(self._planned.total(), 'training')}: {', '.join(studies)}"] if studies else []

    def start(self, number: int, job: Job) -> None:
        """A job begins."""
        self._running[number] = job

    def end(self, number: int) -> list[str]:
        """A job has ended; return what to say of it."""
        job = self._running.pop(number, None)
        if job is None:
            return []
        self._spans.setdefault(job.kind, []).append((job.started, self.now))
        self.left[job.kind, job.study] -= 1
        if job.kind == "pages":
            return [f"page: {Path(file).resolve()}" for file in job.output if file.endswith(".html")]
        name = " ".join(part for part in (job.wildcards.get("variant"), _run(job)) if part)
        ending = _ending(job)
        if job.kind == "trainings":
            total = self._planned[job.study or ""]
            done = total - self.left["trainings", job.study]
            return [f"{job.study} {done}/{total}: {name} {ending}, about {rough_duration(self.seconds_left())} left"]
        return [f"{job.study}: {name} {job.kind.removesuffix('s')} {ending}"] if ending.startswith("failed") else []

    def seconds_left(self) -> float:
        """About how long the rest takes, as if jobs ran side by side like those before."""
        rest = sum(count * self._seconds_of_one(kind) for (kind, _), count in self.left.items())
        worked = _seconds(*self._spans.values())
        return rest * worked / sum(_seconds(spans) for spans in self._spans.values()) if worked else rest

    def timing(self) -> dict[str, Any]:
        """What results/timing.json holds: seconds of the whole, and of each kind of job the part in which one ran."""
        spans = {kind: self._spans[kind] for kind in dict.fromkeys(KINDS.values()) if kind in self._spans}
        wall = max((self.now - self.started) / 1e9, 1e-3)
        kinds = {
            kind: {
                "jobs": len(of_kind),
                "job_s": round(sum(end - start for start, end in of_kind) / 1e9, 3),
                "wall_s": round(_seconds(of_kind), 3),
                "share": round(_seconds(of_kind) / wall, 4),
            }
            for kind, of_kind in spans.items()
        }
        idle = wall - _seconds(*spans.values())
        return {"wall_s": round(wall, 3), "no_job_s": round(idle, 3), "kinds": kinds}

    def _seconds_of_one(self, kind: str) -> float:
        """Seconds of the whole that one more job of a kind takes."""
        if not (spans := self._spans.get(kind)):
            return _GUESS_S.get(kind, _ELSE_S)
        wall = _seconds(spans)
        return max(wall - _START_S, wall / 2) / len(spans)


def job_of(rule: str, wildcards: Mapping[str, str], output: tuple[str, ...], started: int) -> Job | None:
    """The job that a rule's name stands for; None where nobody waits for it."""
    match = _RULE.search(rule)
    return Job(KINDS[match[1]], match[2], wildcards, output, started) if match else None


def summary(timing: Mapping[str, Any]) -> str:
    """What a call says at its end of where the time went."""
    parts = [f"{kind} {of_kind['share']:.0%}" for kind, of_kind in timing["kinds"].items()]
    parts.append(f"no job {timing['no_job_s'] / timing['wall_s']:.0%}")
    return f"{rough_duration(timing['wall_s'])}, of which {', '.join(parts)}"


def _seconds(*sets: list[tuple[int, int]]) -> float:
    """Seconds in any of the spans."""
    from steptrace import intervals  # and numpy: every supervisor imports this module for a constant

    return intervals.measure(intervals.union(*(intervals.spans(*zip(*spans, strict=True)) for spans in sets))) / 1e9


def _run(job: Job) -> str | None:
    return f"run{job.wildcards['repeat']}" if "repeat" in job.wildcards else None


def _ending(job: Job) -> str:
    """How a supervised job ended, which is in what it writes: its own exit code says nothing."""
    for file in job.output:
        if file.endswith("status.json"):
            try:
                status = json.loads(Path(file).read_bytes())
                took = f"after {rough_duration(status['wall_s'])}"
                return f"ok {took}" if status["status"] == "ok" else f"failed {took} ({status['error']})"
            except (OSError, ValueError, KeyError, TypeError):
                return "left no status"
    return "ok"
