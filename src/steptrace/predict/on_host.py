"""Gradients of what the virtual device computes on the CPU in place of an operator that only a GPU has."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict.threads import plain_threads
from steptrace.torch_names import private

#: Tensors that stand for others while PyTorch traces; no class where PyTorch has none.
_FAKE: Final[Any] = private("torch._subclasses.FakeTensor") or ()


def gradients(
    function: Callable[..., Sequence[Tensor]], inputs: Sequence[Tensor | None], of_results: Sequence[Tensor | None]
) -> list[Any]:
    """The gradients of a function's inputs by autograd, from those of its results; each of both may be None.

    Where an input has no values, all gradients have none: they have the shapes of the inputs.
    """
    if any(isinstance(one, _FAKE) or (one is not None and one.is_meta) for one in inputs):
        return [None if one is None else torch.empty_like(one) for one in inputs]

    def compute() -> list[Any]:
        given = [None if one is None else one.detach().requires_grad_() for one in inputs]
        pairs = [pair for pair in zip(function(*given), of_results, strict=False) if pair[1] is not None]
        results, grads = zip(*pairs, strict=True)
        leaves = [one for one in given if one is not None]
        of_leaves = iter(torch.autograd.grad(results, leaves, grads, allow_unused=True))
        return [None if one is None else next(of_leaves) for one in given]

    with plain_threads(), ThreadPoolExecutor(1) as thread:  # below a dispatch, no thread's autograd records
        return thread.submit(compute).result()
