"""The kernels of an operator that launches several, such as the fast path of encoder layers in compiled code."""

from collections.abc import Iterator
from typing import Any

import torch

from steptrace.inductor.lower import Fused, Launch, Library
from steptrace.predict import attention, backend, encoder_layers
from steptrace.predict.fake_fallback import fallbacks_on_host
from steptrace.predict.pytorch import DispatchMode
from steptrace.torch_names import private

FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
FakeTensorMode: Any = private("torch._subclasses.fake_tensor.FakeTensorMode")
pytree: Any = private("torch.utils._pytree")


class _Noting(DispatchMode):  # type: ignore[misc]
    """Notes the operators that run in it."""

    def __init__(self) -> None:
        super().__init__()
        self.launches: list[Library] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "aten":  # and not a question for a tensor's device
            self.launches.append(Library(operator=func, args=tuple(args), kwargs=dict(kwargs or {}), result=result))
        return result


def launches_in(launch: Launch) -> Iterator[Launch]:
    """The operators that a launch consists of; the launch itself if it is one kernel.

    Args:
        launch: its sizes are numbers.
    """
    form = None if isinstance(launch, Fused) else encoder_layers.OPERATORS.get(launch.operator)
    if form is None or isinstance(launch, Fused):
        yield launch
        return
    mode = FakeTensorMode(allow_non_fake_inputs=True)

    def moved(value: Any) -> Any:
        if not isinstance(value, FakeTensor):
            return value
        empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return FakeTensor(mode, empty, backend.device(0))

    args, kwargs = pytree.tree_map(moved, (launch.args, launch.kwargs))
    with torch.no_grad(), fallbacks_on_host(), mode, _Noting() as noted:
        form(attention.of_fakes, *args, **kwargs)
    yield from noted.launches
