"""A process with a GPU after a prediction."""

import accelerator_script


def test_the_accelerator_answers_after_a_prediction_as_before():
    assert accelerator_script.differences_after_a_prediction() == []
