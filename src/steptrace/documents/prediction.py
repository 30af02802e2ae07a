"""prediction.json: a training step as it was predicted for a GPU.

Its counts are means over the followed steps. The operators of all these steps together, which estimates are made from,
are in `followed`. The program itself counts over all steps, see `documents.probe.Prediction`.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from steptrace.documents.base import Document, File, field
from steptrace.documents.compiled import CompiledStep
from steptrace.documents.estimate import COMPILED, OperatorCalls
from steptrace.documents.probe import CountedPlace, Prediction, ProgramPlace, Site
from steptrace.documents.syncs import AwaitedBranch, PredictedBranch, PredictedSite
from steptrace.periods import period

#: Per step: a mean over the followed steps, which stays a whole number where it is one.
PerStep = int | float


class PredictedPlace(ProgramPlace, frozen=True, kw_only=True):
    """A place in the program, and how often something is predicted to happen there."""

    count_per_step: Annotated[PerStep, field("How often per step, a mean over the followed steps.")] = msgspec.field(
        name="count"
    )

    @property
    def site(self) -> PredictedSite:
        """The place as comparison.json has it, with the rhythm in which it comes."""
        return self._site(kind=None)

    def _site(self, **of_sync: Any) -> PredictedSite:
        steps = [number for number, count in enumerate(self.by_step) if count]
        rhythm: dict[str, Any] = {}
        if self.by_step:
            spacing = period(steps, len(self.by_step))
            rhythm = {"in_steps": len(steps), "of_steps": len(self.by_step), "every": spacing}
        return PredictedSite(
            file=self.file,
            line=self.line,
            function=self.function,
            op=self.op,
            label=self.label,
            phase=self.phase,
            code=self.code,
            count_per_step=self.count_per_step,
            program_file=self.program_file,
            program_line=self.program_line,
            **rhythm,
            **of_sync,
        )


class PredictedSync(PredictedPlace, frozen=True, kw_only=True):
    """A place that makes the host wait."""

    kind: Annotated[str, field("What waits: a copy, a stream, an event, the device.")]
    pinned: Annotated[bool | None, field("Of a copy to the device: whether the host's memory is pinned.")] = None

    @property
    def site(self) -> PredictedSite:
        """The place as comparison.json has it, with the rhythm in which it comes."""
        return self._site(kind=self.kind, pinned=self.pinned)


class FollowedWork(Document, frozen=True, kw_only=True):
    """The work on the virtual GPU, over all followed steps together. Estimates are made from it."""

    steps: Annotated[int, field("How many steps were followed.")]
    operator_calls: Annotated[tuple[OperatorCalls, ...], field("Calls of operators, over all these steps.")]
    queue: Annotated[
        tuple[int, ...],
        field("Their order over all these steps: positions in `operator_calls`, and -1 where the host waits."),
    ]
    compiled: Annotated[
        CompiledStep | None, field("The same with compiled code; null where nothing is compiled, or not followed.")
    ] = None


class Predicted(File, frozen=True, kw_only=True):
    """A training step as it was predicted for a GPU. Counts are per step: means over the followed steps."""

    schema_version: Annotated[int, field("Version of this document.", kind="first")] = 3
    syncs_per_step: Annotated[PerStep, field("Syncs per step.")] = msgspec.field(name="total")
    sites: Annotated[tuple[PredictedSync, ...], field("Where they are.")]
    unknown: Annotated[tuple[PredictedPlace, ...], field("Operations whose syncs could not be judged.")]
    assumed: Annotated[
        tuple[PredictedPlace, ...], field("Where the program read values that the prediction had not computed.")
    ] = ()
    early_reads: Annotated[
        tuple[PredictedPlace, ...], field("Where the program read a copy to the host that may be under way.")
    ] = ()
    operators_per_step: Annotated[PerStep, field("Operators that do work, per step.")] = msgspec.field(name="operators")
    operators_per_step_by_label: Annotated[
        dict[str, PerStep], field("The same by `record_function` label; nested ones in both.")
    ] = msgspec.field(name="operators_per_section")
    by_step: Annotated[tuple[int, ...], field("Syncs of each step; empty where steps are not told apart.")] = ()
    warmup_by_step: Annotated[tuple[int, ...], field("Syncs of each step before those that were followed.")] = ()
    by_rank: Annotated[tuple[PerStep, ...], field("Syncs per step of each rank of a program.")] = ()
    branches: Annotated[tuple[PredictedBranch, ...], field("Lines that branch differently every few steps.")] = ()
    awaited: Annotated[
        tuple[AwaitedBranch, ...],
        field("Where the program waits for its step counter, and was not seen to branch in the followed steps."),
    ] = ()
    peak_memory_bytes: Annotated[int | None, field("The most bytes that the allocator held in any step.")] = None
    batch_size: Annotated[int | None, field("Samples per step, where known.")] = None
    devices: Annotated[int, field("GPUs that train together.")] = 1
    tf32: Annotated[bool, field("Whether float32 products may be in TF32.")] = False
    tf32_convolutions: Annotated[bool, field("The same of convolutions.")] = True
    gpu: Annotated[str | None, field("The GPU that the program was told of.")] = None
    gpus: Annotated[tuple[str, ...], field("The GPUs that an estimate was asked for.")] = ()
    exit_code: Annotated[
        int | None,
        field(
            "The program's exit code if it ended before all steps were followed; otherwise steptrace ended it: null."
        ),
    ] = None

    @property
    def ran_on_gpu(self) -> bool:
        """Whether anything of the program ran on the virtual GPU.

        Compiled code is noted wherever it runs. Its operators are counted if they run on the GPU.
        """
        unknown = [place for place in self.unknown if place.op != COMPILED]
        return bool(self.operators_per_step or self.syncs_per_step or unknown)

    @property
    def sites_by_step(self) -> list[Sequence[int]]:
        """The syncs in each step of each site; empty where steps are not told apart."""
        return [site.by_step for site in self.sites]


class PredictedStep(Predicted, frozen=True, kw_only=True):
    """The content of prediction.json."""

    followed: Annotated[FollowedWork, field("What estimates are made from, over all followed steps.")]

    @property
    def not_covered(self) -> "list[PredictedPlace]":
        """The places that were not judged, without the calls of compiled code whose kernels are known.

        What is known of that code says more of those calls.
        """
        compiled = self.followed.compiled
        codes = () if compiled is None or compiled.is_asked else compiled.codes
        unknown = {(code.file, code.line) for code in codes if not code.is_known}
        known = {(code.file, code.line) for code in codes} - unknown
        return [place for place in self.unknown if place.op != COMPILED or (place.file, place.line) not in known]


def predicted_step(ranks: Sequence[Prediction]) -> PredictedStep:
    """The mean step of what was followed: rank 0's, with the syncs of all ranks beside it.

    Args:
        ranks: what was followed of each rank, in order.
    """
    first = ranks[0]
    steps = len(ranks[0].by_step) or 1
    return PredictedStep(
        syncs_per_step=_per_step(sum(first.by_step) if first.by_step else first.total, steps),
        sites=tuple(PredictedSync(**_fields(site, steps), kind=site.kind, pinned=site.pinned) for site in first.sites),
        unknown=_places(first.unknown, steps),
        assumed=_places(first.assumed, steps),
        early_reads=_places(first.early_reads, steps),
        operators_per_step=_per_step(first.operators, steps),
        operators_per_step_by_label={
            label: _per_step(count, steps) for label, count in first.operators_per_section.items()
        },
        by_step=first.by_step,
        warmup_by_step=first.warmup_by_step,
        by_rank=tuple(_per_step(sum(rank.by_step), len(rank.by_step)) for rank in ranks if rank.by_step),
        branches=tuple(
            PredictedBranch(file=branch.file, line=branch.line, every=branch.every) for branch in first.branches
        ),
        awaited=tuple(
            AwaitedBranch(file=branch.file, line=branch.line, awaits=branch.awaits, in_steps=branch.in_steps)
            for branch in first.awaited
        ),
        peak_memory_bytes=first.peak_memory_bytes,
        batch_size=first.batch_size,
        devices=first.devices,
        tf32=first.tf32,
        tf32_convolutions=first.tf32_convolutions,
        gpu=first.gpu,
        followed=FollowedWork(
            steps=steps, operator_calls=first.operator_calls, queue=first.queue, compiled=first.compiled
        ),
    )


def _places(places: Sequence[CountedPlace], steps: int) -> tuple[PredictedPlace, ...]:
    return tuple(PredictedPlace(**_fields(place, steps)) for place in places)


def _fields(place: CountedPlace | Site, steps: int) -> dict[str, Any]:
    """The fields of a place per step."""
    fields = {name: getattr(place, name) for name in ProgramPlace.__struct_fields__}
    return {**fields, "count_per_step": _per_step(place.count, steps)}


def _per_step(count: int, steps: int) -> PerStep:
    """A count per step; whole numbers stay whole."""
    return count // steps if count % steps == 0 else count / steps
