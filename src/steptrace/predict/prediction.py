"""A prediction: what was recorded of one step, frozen."""

from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch

from steptrace.documents.estimate import OperatorCalls
from steptrace.engine.frames import trace_file_name
from steptrace.predict.recorder import Assumed, CountedPlace, Site, Syncs, Unknown

_Counted = TypeVar("_Counted", bound=CountedPlace)


@dataclass(frozen=True)
class Prediction:
    """The syncs of one training step, frozen. `batch_size` is what a config was followed with, None for a function.

    `tf32`, `tf32_convolutions`: whether float32 products, and convolutions, may be computed in TF32.
    """

    total: int
    sites: tuple[Site, ...]
    unknown: tuple[Unknown, ...]
    operators_per_section: dict[str, int]
    operators: int
    assumed: tuple[Assumed, ...] = ()
    peak_memory_bytes: int | None = None
    batch_size: int | None = None
    operator_calls: tuple[OperatorCalls, ...] = ()
    tf32: bool = False
    tf32_convolutions: bool = True

    @classmethod
    def of(cls, syncs: Syncs) -> "Prediction":
        """Freeze what has been predicted so far, naming files as a trace of the program does."""
        return cls(
            total=syncs.total,
            sites=tuple(_named(site) for site in syncs.sites),
            unknown=tuple(_named(unknown) for unknown in syncs.unknown),
            operators_per_section=syncs.operators_per_label,
            operators=syncs.operator_total,
            assumed=tuple(_named(place) for place in syncs.assumed),
            peak_memory_bytes=syncs.peak_memory_bytes,
            operator_calls=syncs.operators,
            tf32=torch.backends.cuda.matmul.allow_tf32,
            tf32_convolutions=torch.backends.cudnn.allow_tf32,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as prediction.json holds it."""
        return asdict(self)


def _named(place: _Counted) -> _Counted:
    program = place.program_file
    return replace(
        place,
        file=place.file and trace_file_name(place.file),
        program_file=program and trace_file_name(program),
    )
