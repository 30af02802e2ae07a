"""Compiled code is followed wherever its tensors are kept."""

import collections
import weakref
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor, nn

from steptrace.predict import Prediction, captured, graph_compiler, predict_syncs
from steptrace.torch_names import release_of

pytestmark = pytest.mark.skipif(
    release_of(torch.__version__) < captured._OLDEST, reason="following compiled code takes PyTorch 2.13"
)
Compiled = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def without_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only Dynamo is needed."""
    monkeypatch.setattr(graph_compiler, "launches_of", lambda *_, **__: [])


def weight() -> Tensor:
    return torch.ones(4, device="cuda")


class _Pair(NamedTuple):
    first: Tensor
    second: Tensor


class _Slots:
    __slots__ = ("__second", "first")

    def __init__(self) -> None:
        self.first, self.__second = weight(), weight()

    def scaled(self, x: Tensor) -> Tensor:
        return x * self.first + self.__second


class _Owner:
    def __init__(self) -> None:
        self.weight = weight()


def of_weak_reference() -> Compiled:
    owner = _Owner()
    reference = weakref.ref(owner)

    def scaled(x: Tensor) -> Tensor:
        alive = reference()
        assert alive is not None
        return x * alive.weight

    scaled.owner = owner  # type: ignore[attr-defined]
    return scaled


def of_named_tuple() -> Compiled:
    pair = _Pair(weight(), weight())
    return lambda x: x * pair.first + pair.second


def of_queue() -> Compiled:
    queue = collections.deque([weight()])
    return lambda x: x * queue[0]


def of_slots() -> Compiled:
    return _Slots().scaled


def of_distribution() -> Compiled:
    normal = torch.distributions.Normal(weight(), weight(), validate_args=False)
    log_prob: Compiled = normal.log_prob
    return lambda x: log_prob(x)


@pytest.mark.parametrize("make", [of_weak_reference, of_named_tuple, of_queue, of_slots, of_distribution])
def test_tensors_are_found_wherever_code_keeps_them(make: Callable[[], Compiled]) -> None:
    with predict_syncs(follow_compiled=True) as syncs:
        torch.compile(make())(weight())
        (code,) = Prediction.so_far(syncs).compiled.codes
    assert (code.graphs, code.unlowered, code.breaks) == (1, None, ())


def test_an_optimizer_is_found_through_its_scheduler() -> None:
    """A scheduler wraps the optimizer's `step`, and holds the optimizer by a weak reference."""
    with predict_syncs(follow_compiled=True) as syncs:
        model = nn.Linear(4, 4).cuda()
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.9**epoch)
        model(weight()).sum().backward()
        torch.compile(optimizer.step, fullgraph=False)()
        (code,) = Prediction.so_far(syncs).compiled.codes
    assert (code.graphs, code.unlowered) == (1, None)
