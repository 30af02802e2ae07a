"""What the probe writes in a program's environment is what the launcher reads: dataclasses there, structs here."""

import dataclasses
import json
import subprocess
import sys
from typing import Any, get_args, get_type_hints

import msgspec
import pytest

from steptrace.documents import probe
from steptrace.documents.base import Document, convert
from steptrace.documents.estimate import OperatorCalls, TensorSpec
from steptrace.documents.prediction import predicted_step
from steptrace.engine import rank_record
from steptrace.engine.step_counters import StepBranch
from steptrace.predict import counted_places, prediction

#: The program's side, by the reader's.
PAIRS: dict[type[Document], type] = {
    probe.Prediction: prediction.Prediction,
    probe.CountedPlace: counted_places.CountedPlace,
    probe.Site: counted_places.Site,
    probe.StepBranch: StepBranch,
    **{getattr(probe, name): kind for name, kind in vars(rank_record).items() if dataclasses.is_dataclass(kind)},
}
#: Other names of the program's classes for what its readers take alike.
ALIKE = {"Unknown": "CountedPlace", "Assumed": "CountedPlace", "EarlyRead": "CountedPlace"}
#: Fields that the program fills with plain data, which has a type on the reader's side alone.
PLAIN = {("RankRecord", "notes"), ("RankRecord", "prediction"), ("RankRecord", "communication")}


def shape(kind: Any) -> str:
    """A type as text, with the classes of both sides under one name."""
    if (arguments := get_args(kind)) and getattr(kind, "__metadata__", None) is not None:
        return shape(arguments[0])
    if arguments:
        origin = getattr(kind, "__origin__", None)
        parts = [shape(one) for one in arguments]
        return f"{getattr(origin, '__name__', 'union')}[{', '.join(parts if origin else sorted(parts))}]"
    name = getattr(kind, "__name__", str(kind))
    return ALIKE.get(name, name)


def defaults_of(kind: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(kind):
        return {one.name: one.default for one in dataclasses.fields(kind) if one.default is not dataclasses.MISSING}
    return dict(kind._field_defaults)


@pytest.mark.parametrize("struct", PAIRS, ids=lambda struct: struct.__name__)
def test_both_sides_have_the_same_fields_of_the_same_types(struct: type[Document]) -> None:
    program = PAIRS[struct]
    assert struct.__name__ == program.__name__
    written = get_type_hints(program)
    read = get_type_hints(struct, include_extras=True)
    assert list(written) == list(read)
    differ = {name for name in read if shape(read[name]) != shape(written[name])}
    assert differ == {name for owner, name in PLAIN if owner == struct.__name__}
    optional = {field.name: field.default for field in msgspec.structs.fields(struct) if not field.required}
    assert defaults_of(program).items() >= optional.items()


def place(**changes: Any) -> dict[str, Any]:
    fields = {
        "op": "aten::item", "file": "train.py", "line": 3, "function": "main", "code": "loss.item()", "label": None,
        "phase": "other", "reason": "the value is needed", "count": 6, "by_step": (2, 1, 3),
    }  # fmt: skip
    return fields | changes


def test_a_prediction_goes_from_the_program_to_its_readers_and_becomes_a_mean_step() -> None:
    tensor = TensorSpec(shape=(4, 4), strides=(4, 1), dtype="float32")
    call = OperatorCalls(
        name="aten.mm.default", inputs=(tensor, tensor), outputs=(tensor,), is_view=False, flop=128, calls=3,
        phase="forward", file="train.py", line=2, arguments={"bias": True},
    )  # fmt: skip
    followed = prediction.Prediction(
        total=6, sites=(counted_places.Site(**place(), kind="d2h_copy"),),
        unknown=(counted_places.Unknown(**place(op="lib::nms", count=3, by_step=(1, 1, 1))),),
        operators_per_section={"loss": 4}, operators=7, operator_calls=(call,), queue=(0, -1, 0, -1, 0, -1),
        by_step=(2, 1, 3), warmup_by_step=(9,), branches=(StepBranch("train.py", 4, 2),),
    )  # fmt: skip
    read = convert(json.loads(json.dumps(followed.to_json())), probe.Prediction)
    assert read.operator_calls == (call,)
    step = predicted_step([read, msgspec.structs.replace(read, by_step=(1, 1, 2))])
    assert (step.syncs_per_step, step.by_step, step.by_rank) == (2, (2, 1, 3), (2, 4 / 3))
    assert (step.operators_per_step, step.operators_per_step_by_label) == (7 / 3, {"loss": 4 / 3})
    assert (step.sites[0].count_per_step, step.unknown[0].count_per_step) == (2, 1)
    assert (step.sites[0].site.in_steps, step.sites[0].site.of_steps) == (3, 3)
    work = step.followed  # over all three steps
    assert (work.steps, work.operator_calls[0].calls, len(work.queue)) == (3, 3, 6)
    assert [branch.place for branch in step.branches] == ["train.py:4"]


def test_a_followed_program_loads_neither_a_measurement_nor_words() -> None:
    code = "import steptrace.launch.predict, sys; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "steptrace.predict.entry" in loaded
    packages = {".".join(name.split(".")[:2]) for name in loaded if name.startswith("steptrace.")}
    assert not packages & {"steptrace.words", "steptrace.analysis", "steptrace.report", "steptrace.findings"}
    assert "steptrace.engine.measure" not in loaded
