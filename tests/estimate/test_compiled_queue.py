"""The queue of a step with compiled code on several GPUs: collectives lie within the backward pass."""

from steptrace.documents.estimate import SYNC
from steptrace.estimate.compiled import _with_overlap

FORWARD, BACKWARD = -2, -3
WHOLE = (0.0, 1.0)


def test_buckets_of_gradients_are_sent_evenly_within_the_backward_pass_and_the_last_at_its_end() -> None:
    queue = [0, FORWARD, BACKWARD, 5, 6, 1, SYNC]
    assert list(_with_overlap(queue, {5, 6})) == [
        (0, WHOLE),
        (FORWARD, WHOLE),
        (BACKWARD, (0.0, 0.5)),
        (5, WHOLE),
        (BACKWARD, (0.5, 1.0)),
        (6, WHOLE),
        (1, WHOLE),
        (SYNC, WHOLE),
    ]


def test_a_backward_pass_without_collectives_behind_it_is_whole() -> None:
    assert list(_with_overlap([FORWARD, BACKWARD, 3, 5], {5})) == [
        (FORWARD, WHOLE),
        (BACKWARD, WHOLE),
        (3, WHOLE),
        (5, WHOLE),
    ]
