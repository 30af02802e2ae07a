"""Gradients for CPU code that stands in for an operator that only GPUs have."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.threads import plain_threads
from steptrace.torch_names import private

#: The classes of tensors that stand for others while PyTorch traces; empty if PyTorch has none.
_FAKE: Final[Any] = private("torch._subclasses.FakeTensor") or ()


def gradients(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor | None], of_results: Sequence[Tensor | None]
) -> list[Any]:
    """The gradients of a function's inputs by autograd, from those of its results. Any of them may be None.

    If an input has no values, no gradient has values, only the shapes of the inputs.
    """
    if any(isinstance(tensor, _FAKE) or (tensor is not None and tensor.is_meta) for tensor in inputs):
        return [None if tensor is None else torch.empty_like(tensor) for tensor in inputs]

    def compute() -> list[Any]:
        detached = [None if tensor is None else tensor.detach().requires_grad_() for tensor in inputs]
        pairs = [pair for pair in zip(function(*detached), of_results, strict=False) if pair[1] is not None]
        results, grads = zip(*pairs, strict=True)
        leaves = [tensor for tensor in detached if tensor is not None]
        of_leaves = iter(torch.autograd.grad(results, leaves, grads, allow_unused=True))
        return [None if tensor is None else next(of_leaves) for tensor in detached]

    with plain_threads(), ThreadPoolExecutor(1) as thread:  # below a dispatch, no thread's autograd records
        return thread.submit(compute).result()
