"""The estimates of `steptrace predict` by batch."""

from documents import fill
from steptrace.commands.estimates import estimates_by_name
from steptrace.commands.follow import FollowedProgram
from steptrace.documents.prediction import PredictedStep
from steptrace.estimate.gpus import gpu_named


def _followed(name: str, samples: int) -> FollowedProgram:
    prediction = {"batch_size": samples, "peak_memory_bytes": samples * 2**30, "followed": {"steps": 1}}
    return FollowedProgram(name, fill(PredictedStep, prediction))


def test_the_batch_of_a_study_is_the_samples_of_a_step_and_that_of_a_program_the_one_asked_for() -> None:
    """Four batches of a step are accumulated in one variant."""
    by_batch = {batch: [_followed("plain", batch), _followed("four", 4 * batch)] for batch in (2, 8)}
    gpus = [gpu_named("H100")]
    of_study = estimates_by_name(by_batch, gpus, {"plain": "plain", "four": "plain"})
    batches = {name: [estimate.batch for estimate in rows] for name, rows in of_study.items()}
    assert batches == {"plain": [2, 8], "four": [8, 32]}
    assert [estimate.largest_batch for estimate in of_study["plain"]] == [78, 78]
    of_program = estimates_by_name({2: [_followed("main.py", 6)]}, gpus, None)
    assert [estimate.batch for estimate in of_program["main.py"]] == [2]
