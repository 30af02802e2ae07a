"""What a page shows of a variant's input pipeline, as plain data."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The parts of loading a batch, in the order a batch goes through them.
LOADING_PARTS = ("fetch", "transform", "collate", "pin", "copy")


@dataclass(frozen=True)
class InputPipeline:
    """The wait for data in milliseconds a step, and what loading a batch is made of; None where not measured.

    `counted_ms` is what of the wait counts against the step, `share` (0 to 1) its part of the step time, whose mean is
    `step_ms`; `idle_part` is the part of the wait with the GPU idle. `loading` holds milliseconds a batch by part, None
    without such a pass.
    """

    wait_ms: float | None
    counted_ms: float | None
    step_ms: float | None
    share: float | None
    verdict: str | None
    idle_part: float | None
    loading: Mapping[str, float | None] | None


def load_input(raw: Mapping[str, Any] | None) -> InputPipeline | None:
    """A variant's input pipeline from `input` of comparison.json; None where the variant has none."""
    if not raw:
        return None
    return InputPipeline(
        wait_ms=raw.get("wait_ms"),
        counted_ms=raw.get("counted_ms"),
        step_ms=raw.get("step_ms"),
        share=raw.get("share"),
        verdict=raw.get("verdict"),
        idle_part=raw.get("idle_part"),
        loading=raw.get("breakdown_ms"),
    )
