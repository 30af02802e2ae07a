"""Callbacks around a step: Lightning's labels, and the frames of transformers, Keras and Lightning."""

import pytest

from builders import TraceBuilder
from steptrace.analysis.callbacks import _is_callback
from steptrace.documents.subjects.callbacks import SUBJECT

US = 1_000


def a_step(*, gpu: bool = True) -> TraceBuilder:
    """A step of 1 ms; the GPU works in its first 300 us and from 700 us on."""
    builder = TraceBuilder()
    builder.step(0, 0, 1_000 * US)
    builder.op("aten::mm", 0, 20 * US)
    if gpu:
        builder.kernel(5 * US, 10 * US, 290 * US)
        builder.kernel(690 * US, 700 * US, 290 * US)
    return builder


def test_a_callback_inside_another_one_has_its_own_time() -> None:
    builder = a_step()
    builder.frame("train.py(1): <module>", 0, 1_000 * US)
    builder.frame("transformers/trainer_callback.py(554): on_step_end", 250 * US, 400 * US)
    builder.frame("transformers/trainer_callback.py(561): call_event", 255 * US, 390 * US)
    builder.frame("mine.py(7): on_step_end", 260 * US, 300 * US)
    builder.label("[pl][profile][Callback]Logger.on_train_batch_end", 260 * US, 300 * US)  # the frames tell the same
    mine, library = SUBJECT.rows_of(builder.summary())
    assert (mine.file, mine.line, mine.function, mine.count) == ("mine.py", 7, "on_step_end", 1)
    assert (mine.host_ns, mine.idle_ns) == (300 * US, 260 * US)
    assert (library.file, library.host_ns, library.idle_ns) == ("transformers/trainer_callback.py", 100 * US, 90 * US)


def test_labels_of_callbacks_count_without_stacks_and_idle_time_is_not_measured_without_a_gpu() -> None:
    builder = a_step(gpu=False)
    builder.label("[pl][profile][Callback]Logger.on_train_batch_end", 400 * US, 100 * US)
    builder.label("[pl][profile][Callback]Logger.on_train_batch_end", 600 * US, 150 * US)
    (row,) = SUBJECT.rows_of(builder.summary())
    assert (row.file, row.function) == (None, "[pl][profile][Callback]Logger.on_train_batch_end")
    assert (row.count, row.host_ns, row.longest_ns, row.idle_ns) == (2, 250 * US, 150 * US, None)


@pytest.mark.parametrize(
    ("name", "is_one"),
    [
        ("[pl][profile][Callback]ModelCheckpoint{'monitor': None}.on_train_batch_end", True),
        ("[pl][profile][LightningModule]Net.on_train_batch_start", True),
        ("transformers/trainer_callback.py(554): on_step_begin", True),
        ("keras/src/callbacks/callback_list.py(166): on_train_batch_end", True),
        ("fastai/callback/core.py(60): after_batch", True),
        ("mine.py(3): depend_on_batch_end", False),
        ("mine.py(3): on_train_batch_ended", False),
        ("mine.py(3): on_train_epoch_end", False),
        ("[pl][profile][Strategy]SingleDeviceStrategy.training_step", False),
    ],
)
def test_callbacks_are_known_by_their_names(name: str, is_one: bool) -> None:  # noqa: FBT001
    assert _is_callback(name) is is_one


def test_a_trace_without_callbacks_lacks_nothing() -> None:
    summary = a_step().summary()
    assert SUBJECT.rows_of(summary) == ()
    assert summary.absent.get("callbacks") is None
