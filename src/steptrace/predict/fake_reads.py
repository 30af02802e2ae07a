"""What a program reads of fake tensors between two graphs, where Dynamo runs its code as it is."""

from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.kernel_calls import ASSUMED_VALUE
from steptrace.torch_names import private

FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
pytree: Any = private("torch.utils._pytree")
_Mode: Any = private("torch.utils._python_dispatch.TorchDispatchMode") or object
#: How often a condition on a tensor holds. Then it does not, so that a loop that waits for it ends.
_MOST_TRUE: Final = 16


class ReadsBetweenGraphs(_Mode):  # type: ignore[misc]
    """Answers what fake tensors cannot: a value that is read between two graphs."""

    def __init__(self, number: float) -> None:
        super().__init__()
        self.conditions = 0
        #: The value of each number of type float that is read.
        self.number = number

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Whether Dynamo compiles code although this mode is active."""
        return True  # it does not keep code from being compiled

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if str(func) == "aten._local_scalar_dense.default":
            if args[0].dtype == torch.bool:
                self.conditions += 1
                return self.conditions <= _MOST_TRUE
            return self.number if args[0].dtype.is_floating_point else ASSUMED_VALUE
        result = func(*args, **(kwargs or {}))
        return pytree.tree_map(lambda value: _with_known_sizes(value, args), result)


def _with_known_sizes(value: Any, args: Any) -> Any:
    """A tensor between two graphs whose sizes depend on values, such as of `nonzero`: there they are numbers."""
    if not isinstance(value, FakeTensor) or not any(isinstance(size, torch.SymInt) for size in value.shape):
        return value
    most = min((int(arg.numel()) for arg in pytree.tree_leaves(args) if isinstance(arg, Tensor)), default=1)
    sizes = [size if isinstance(size, int) else most for size in value.shape]
    return FakeTensor(value.fake_mode, torch.empty(sizes, dtype=value.dtype, device="meta"), value.fake_device)
