"""The pytest plug-in: the fixture `assert_no_syncs` holds a training step to a budget of syncs, on any machine."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

import pytest

from steptrace.format import plural

if TYPE_CHECKING:
    from steptrace.predict import Syncs

AssertNoSyncs = Callable[..., "AbstractContextManager[Syncs]"]


@pytest.fixture
def assert_no_syncs() -> AssertNoSyncs:
    """A context manager: the test fails if what runs inside makes more syncs on CUDA than its budget allows.

    Inside, "cuda" is a virtual device, as in `steptrace.predict_syncs`: no GPU is needed. It takes `budget`, the most
    syncs of a step, by default 0, and `allow`, the places whose syncs do not count: `FILE:LINE`, `FILE` or a function's
    name. It gives `Syncs`. Call its `reset()` after a first step, which also creates states. A test that runs several
    steps calls its `step_ends()` after each, and the step with most syncs is judged; otherwise all is one step.
    Run tests that train on a real GPU in another call of pytest (see `steptrace.predict_syncs`).

    Example:
        def test_the_step_reads_only_its_loss(assert_no_syncs):
            with assert_no_syncs(budget=1, allow=["data.py"]) as syncs:
                model = Net().to("cuda")
                train_step(model)
                syncs.reset()
                train_step(model)
    """
    return _held_to_budget


@contextmanager
def _held_to_budget(budget: int = 0, allow: Sequence[str] = ()) -> "Iterator[Syncs]":
    try:
        from steptrace.predict import predict_syncs  # a run of pytest without such a test imports no PyTorch
    except ModuleNotFoundError as error:
        pytest.fail(str(error), pytrace=False)

    with predict_syncs() as syncs:
        yield syncs
    if not syncs.operator_total and not syncs.total:
        pytest.fail('nothing ran on "cuda" inside assert_no_syncs: move model and batch there', pytrace=False)
    counted, most, without_sync = _judged(syncs, allow)
    if most > budget:
        allowed = " beyond those allowed" if allow else ""
        places = "\n".join(f"  {place}" for place in counted)
        unknown = "".join(f"\n  not covered: {place}" for place in syncs.unknown)
        misspelt = "".join(f"\n  no sync is at an entry of allow: {entry}" for entry in without_sync)
        syncs_in_words = plural(most, "sync")
        pytest.fail(
            f"{syncs_in_words} in a step{allowed}, at most {budget}:\n{places}{unknown}{misspelt}", pytrace=False
        )


def _judged(syncs: "Syncs", allow: Sequence[str]) -> tuple[list[str], int, list[str]]:
    """What breaks a budget.

    Returns:
        The places that no entry of `allow` covers, in words; their syncs in the step that has most; the entries of
        `allow` that cover no sync, as a misspelt one does.
    """
    from steptrace.compare.allowed import over_budget, useless
    from steptrace.predict.prediction import predicted
    from steptrace.words.sites import site_in_words

    prediction = predicted(syncs)
    sites = over_budget((sync.site for sync in prediction.sites), allow)
    counted = [sync for sync in prediction.sites if sync.site in sites]
    steps = max((len(sync.by_step) for sync in counted), default=0)
    if steps:
        most = max(sum(sync.by_step[step] for sync in counted) for step in range(steps))
    else:
        most = round(sum(sync.count_per_step for sync in counted))
    without_sync = useless(allow, [sync.site for sync in prediction.sites], ())
    return [site_in_words(sync.site) for sync in counted], most, without_sync
