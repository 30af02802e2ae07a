"""What ends a graph: reads of values, side effects, functions that Dynamo does not follow."""

import contextlib
import copy
import functools
import logging
import math
import os
import pickle
import random
import re
import time
import warnings
from collections import deque
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compile_programs import Compile, called, program

_LOG = logging.getLogger("compile_programs")
_LOG.setLevel(logging.CRITICAL)


@called()
def asked_for(x: Tensor) -> Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + 1


def _inner(x: Tensor) -> Tensor:
    y = x * 3
    torch._dynamo.graph_break()
    return y - 1


@called()
def in_an_inlined_function(x: Tensor) -> Tensor:
    return _inner(x * 2) + 1


def _middle(x: Tensor) -> Tensor:
    return _inner(x + 1) * 5


@called()
def two_functions_deep(x: Tensor) -> Tensor:
    return _middle(x * 2) + 1


@called()
def twice(x: Tensor) -> Tensor:
    return _inner(_inner(x) * 2)


@called()
def in_a_loop(x: Tensor) -> Tensor:
    for _ in range(3):
        x = x + 1
        torch._dynamo.graph_break()
    return x * 2


@called()
def in_a_loop_of_an_inlined_function(x: Tensor) -> Tensor:
    for _ in range(3):
        x = _inner(x)
    return x * 2


@called()
def in_a_while_loop(x: Tensor) -> Tensor:
    count = 0
    while count < 2:
        x = x + 1
        torch._dynamo.graph_break()
        count += 1
    return x


@called()
def in_a_comprehension(x: Tensor) -> Tensor:
    return sum([_inner(x + k) for k in range(2)])


@called()
def with_gradients_off(x: Tensor) -> Tensor:
    with torch.no_grad():
        y = x * 2
        torch._dynamo.graph_break()
        y = y + 1
    return y * 3


@called()
def in_autocast(x: Tensor) -> Tensor:
    with torch.autocast(x.device.type, dtype=torch.bfloat16):
        y = x * 2
        torch._dynamo.graph_break()
        y = y + 1
    return y * 3


class _Plain:
    def __enter__(self) -> "_Plain":
        return self

    def __exit__(self, *_: object) -> None:
        pass


@called()
def in_a_context_of_the_program(x: Tensor) -> Tensor:
    with _Plain():
        y = x * 2
        torch._dynamo.graph_break()
        y = y + 1
    return y * 3


@contextlib.contextmanager
def _context() -> Any:
    yield 1


@called()
def in_a_generator_context(x: Tensor) -> Tensor:
    with _context():
        y = x * 2
        torch._dynamo.graph_break()
        y = y + 1
    return y * 3


@called()
def in_try(x: Tensor) -> Tensor:
    y = x * 2
    try:
        y = y + 1
        torch._dynamo.graph_break()
    except ValueError:
        y = y - 1
    return y * 3


@called()
def in_finally(x: Tensor) -> Tensor:
    y = x * 2
    try:
        y = y + 1
    finally:
        torch._dynamo.graph_break()
    return y * 3


@called()
def printed(x: Tensor) -> Tensor:
    y = x * 2
    print("step", end="")
    return y + 1


@called()
def printed_value(x: Tensor) -> Tensor:
    y = x.sum()
    print(y, end="")
    return y + 1


@called()
def logged(x: Tensor) -> Tensor:
    y = x * 2
    _LOG.info("step")
    return y + 1


@called()
def warned(x: Tensor) -> Tensor:
    y = x * 2
    warnings.warn("slow", stacklevel=1)
    return y + 1


@called()
def item(x: Tensor) -> Tensor:
    return x * x.sum().item()


@called()
def item_of_an_int(x: Tensor) -> Tensor:
    return x * x.sum().long().item()


@called()
def two_items(x: Tensor) -> Tensor:
    low, high = x.min().item(), x.max().item()
    return (x - low) / (high - low + 1)


@called()
def float_of_a_tensor(x: Tensor) -> Tensor:
    return x * float(x.sum())


@called()
def int_of_a_tensor(x: Tensor) -> Tensor:
    return x * int(x.sum())


@called()
def bool_of_a_tensor(x: Tensor) -> Tensor:
    return x * 2 if bool((x > 0).all()) else x


@called()
def list_of_ints(x: Tensor) -> Tensor:
    sizes = x.long().tolist()
    return x * sum(sizes)


@called()
def list_of_floats(x: Tensor) -> Tensor:
    return x * sum(x.tolist())


@called()
def branch(x: Tensor) -> Tensor:
    if x.sum() > 0:
        return x * 2
    return x * 3


@called()
def branch_in_an_inlined_function(x: Tensor) -> Tensor:
    def chosen(y: Tensor) -> Tensor:
        return y * 2 if y.sum() > 0 else y * 3

    return chosen(x + 1) + 1


@called()
def while_on_a_tensor(x: Tensor) -> Tensor:
    while x.sum() < 20:
        x = x + 1
    return x


@called()
def not_of_a_tensor(x: Tensor) -> Tensor:
    if not x.any():
        return x
    return x * 2


@called()
def any_of_tensors(x: Tensor) -> Tensor:
    return x * 2 if any(part > 0 for part in x.unbind()) else x


@called()
def python_max(x: Tensor) -> Tensor:
    return x * max(x[0], x[1])


@called()
def assertion(x: Tensor) -> Tensor:
    assert x.sum() > 0
    return x * 2


@called()
def assertion_with_a_message(x: Tensor) -> Tensor:
    assert x.sum() > 0, "not positive"
    return x * 2


@called()
def assertion_with_a_value(x: Tensor) -> Tensor:
    assert x.sum() > 0, f"got {x.sum()}"
    return x * 2


@called()
def nonzero(x: Tensor) -> Tensor:
    return x[x.nonzero().squeeze(-1)] * 2


@called()
def masked(x: Tensor) -> Tensor:
    return x[x > 0].sum()


@called()
def unique(x: Tensor) -> Tensor:
    return x.unique() * 2


@called()
def one_argument_where(x: Tensor) -> Tensor:
    return x[torch.where(x > 0)] * 2


@called()
def repeat_interleave(x: Tensor) -> Tensor:
    return x.repeat_interleave(x.long()) * 2


@called()
def one_hot(x: Tensor) -> Tensor:
    return nn.functional.one_hot(x.long()).sum() * 2


@called()
def bincount(x: Tensor) -> Tensor:
    return x.long().bincount() * 2


@called()
def equal(x: Tensor) -> Tensor:
    return x * 2 if torch.equal(x, x + 0) else x


@called()
def allclose(x: Tensor) -> Tensor:
    return x * 2 if torch.allclose(x, x + 0) else x


@called()
def sliced_by_a_tensor(x: Tensor) -> Tensor:
    end = x[:3].sum().long()
    return x[:end] * 2


@called()
def list_indexed_by_a_tensor(x: Tensor) -> Tensor:
    return x * [1, 2, 3, 4][x[0].long()]


@called()
def range_of_a_read(x: Tensor) -> Tensor:
    for k in range(int(x[0].item()) + 1):
        x = x + k
    return x


@called()
def shape_from_a_read(x: Tensor) -> Tensor:
    return torch.zeros(int(x.sum().item()), device=x.device) + 1


@called()
def to_numpy(x: Tensor) -> Tensor:
    values = (x * 2).cpu().numpy()
    return x * float(values.sum())


@called()
def from_numpy(x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.ones(8, dtype=np.float32)).to(x.device)


@called()
def numpy_arithmetic(x: Tensor) -> Tensor:
    scale = np.sqrt(np.float64(4.0))
    return x * float(scale)


@called()
def numpy_random(x: Tensor) -> Tensor:
    return x * float(np.random.uniform())


@called()
def python_random(x: Tensor) -> Tensor:
    return x * random.random()


@called()
def python_randint(x: Tensor) -> Tensor:
    return x * 2 if random.randint(1, 1) == 1 else x


@called()
def random_choice(x: Tensor) -> Tensor:
    return x * random.choice([2, 2])


@called()
def clock(x: Tensor) -> Tensor:
    began = time.time()
    y = x * 2
    return y + (time.time() - began)


@called()
def clock_between_operators(x: Tensor) -> Tensor:
    began = time.perf_counter()
    y = x * 2
    seconds = time.perf_counter() - began
    return y + 1 if seconds >= 0 else y


@called()
def seeded(x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x + torch.rand_like(x)


@called()
def generator_of_random_numbers(x: Tensor) -> Tensor:
    generator = torch.Generator(device="cpu")
    generator.manual_seed(0)
    return x + torch.rand(8, generator=generator).to(x.device)


@called()
def deepcopied(x: Tensor) -> Tensor:
    return copy.deepcopy(x * 2) + 1


@called()
def pickled(x: Tensor) -> Tensor:
    size = len(pickle.dumps({"a": 1}))
    return x * size


@called()
def environment(x: Tensor) -> Tensor:
    return x * 2 if os.environ.get("STEPTRACE_NOT_SET") is None else x


@called()
def regular_expression(x: Tensor) -> Tensor:
    return x * 2 if re.match("a+", "aaa") else x


@called()
def formatted(x: Tensor) -> Tensor:
    text = f"{x.sum():.3f}"
    return x * len(text)


@called()
def formatted_shape(x: Tensor) -> Tensor:
    text = f"shape {tuple(x.shape)} of {x.dtype}"
    return x * len(text)


@called()
def repr_of_a_tensor(x: Tensor) -> Tensor:
    return x * len(repr(x.sum()))


@called()
def data_pointer(x: Tensor) -> Tensor:
    return x * 2 if x.data_ptr() != 0 else x


@called()
def data_pointers_compared(x: Tensor) -> Tensor:
    y = x.view(-1)
    return x * 2 if x.data_ptr() == y.data_ptr() else x


@called()
def is_inference(x: Tensor) -> Tensor:
    return x * 2 if x.is_inference() else x * 3


@called()
def identity(x: Tensor) -> Tensor:
    return x * 2 if id(x) == id(x) else x


@called()
def tensor_attribute_set(x: Tensor) -> Tensor:
    y = x * 2
    y.note = "doubled"  # type: ignore[attr-defined]
    return y + 1


@called()
def requires_grad_set(x: Tensor) -> Tensor:
    y = x * 2
    y.requires_grad = True
    return (y * 3).sum()


@called()
def requires_grad_called(x: Tensor) -> Tensor:
    y = (x * 2).detach().requires_grad_()
    return (y * 3).sum()


@called()
def data_set(x: Tensor) -> Tensor:
    y = x * 2
    x.data = y
    return x + 1


@called()
def data_read(x: Tensor) -> Tensor:
    return x.data * 2


@called()
def resized(x: Tensor) -> Tensor:
    y = x.clone()
    y.resize_(4)
    return y * 2


@called()
def given_other_storage(x: Tensor) -> Tensor:
    y = torch.empty(0, device=x.device)
    y.set_(x.clone())
    return y * 2


@called()
def view_in_place(x: Tensor) -> Tensor:
    y = (x * 2).reshape(2, 4)
    y.t_()
    return y + 1


@called()
def view_of_an_input_in_place(x: Tensor) -> Tensor:
    x.unsqueeze_(0)
    return x * 2


@called()
def result_given(x: Tensor) -> Tensor:
    out = torch.empty_like(x)
    torch.mul(x, 2, out=out)
    return out + 1


@called()
def result_given_of_another_shape(x: Tensor) -> Tensor:
    out = torch.empty(0, device=x.device)
    torch.mul(x, 2, out=out)
    return out + 1


@called()
def parameter_made(x: Tensor) -> Tensor:
    weight = nn.Parameter(torch.ones(8, device=x.device))
    return (x * weight).sum()


@called()
def module_made(x: Tensor) -> Tensor:
    layer = nn.Linear(8, 8).to(x.device)
    return layer(x)


@called()
def class_made(x: Tensor) -> Tensor:
    class Scale:
        factor = 2

    return x * Scale.factor


@called()
def sparse_made(x: Tensor) -> Tensor:
    y = torch.sparse_coo_tensor(torch.tensor([[0, 1]], device=x.device), x[:2], (8,))
    return y.to_dense() * 2


@called()
def made_sparse(x: Tensor) -> Tensor:
    return (x * 2).to_sparse().to_dense() + 1


@functools.lru_cache
def _cached(number: int) -> int:
    return number * 2


@called()
def cached_function(x: Tensor) -> Tensor:
    return x * _cached(3)


@called()
def raised_and_caught(x: Tensor) -> Tensor:
    try:
        raise ValueError("no")
    except ValueError:
        x = x * 2
    return x + 1


@called()
def raised_if_wrong(x: Tensor) -> Tensor:
    if (x < 0).any():
        raise ValueError("negative")
    return x * 2


@program
def raised(device: str, compile: Compile) -> None:
    def function(x: Tensor) -> Tensor:
        y = x * 2
        if y.shape[0] == 8:
            raise ValueError("8 is too many")
        return y

    compiled = compile(function)
    for size in (4, 8, 4):
        with contextlib.suppress(ValueError):
            compiled(torch.ones(size, device=device))


@called()
def profiled(x: Tensor) -> Tensor:
    with torch.profiler.record_function("part"):
        y = x * 2
    return y + 1


@called()
def break_while_profiled(x: Tensor) -> Tensor:
    with torch.profiler.record_function("part"):
        y = x * 2
        torch._dynamo.graph_break()
    return y + 1


@torch.compiler.disable
def _disabled(x: Tensor) -> Tensor:
    return x * 3


@called()
def disabled_function(x: Tensor) -> Tensor:
    return _disabled(x * 2) + 1


@torch.compiler.disable(recursive=False)
def _disabled_alone(x: Tensor) -> Tensor:
    return _plus(x * 3)


def _plus(x: Tensor) -> Tensor:
    return x.sin() + 1


@called()
def disabled_function_that_calls(x: Tensor) -> Tensor:
    return _disabled_alone(x * 2) + 1


@called()
def graph_skipped(x: Tensor) -> Tensor:
    torch._dynamo.skip_frame()
    return _plus(x * 2)


@program
def scripted_function(device: str, compile: Compile) -> None:
    @torch.jit.script
    def tripled(x: Tensor) -> Tensor:
        return x * 3

    compile(lambda x: tripled(x * 2) + 1)(torch.ones(8, device=device))


@called()
def deterministic_set(x: Tensor) -> Tensor:
    torch.use_deterministic_algorithms(False, warn_only=True)
    return x * 2


@called()
def default_type_set(x: Tensor) -> Tensor:
    torch.set_default_dtype(torch.float32)
    return x * 2


@called()
def threads_asked(x: Tensor) -> Tensor:
    return x * torch.get_num_threads()


@called()
def math_of_a_read(x: Tensor) -> Tensor:
    return x * math.sqrt(x.sum().item())


@called()
def read_between_two_others(x: Tensor) -> Tensor:
    y = x.sin()
    norm = y.norm().item()
    if norm > 1:
        y = y / norm
    return y.cos()


@called()
def queue_of_limited_length(x: Tensor) -> Tensor:
    recent: deque[Tensor] = deque(maxlen=2)
    for k in range(3):
        recent.append(x + k)
    return recent[0] + recent[1]


@called()
def sorted_tensors(x: Tensor) -> Tensor:
    return sorted([x[0], x[1]])[0] * 2


@called()
def tensor_in_a_list(x: Tensor) -> Tensor:
    y = x * 2
    return y if any(one is y for one in (x, y)) else x


@called(grad=True)
def backward_inside(x: Tensor) -> Tensor:
    loss = (x * x).sum()
    loss.backward()
    return loss.detach() * 2


@called(grad=True)
def gradient_asked_inside(x: Tensor) -> Tensor:
    (gradient,) = torch.autograd.grad((x * x).sum(), x)
    return gradient * 2


@called(grad=True)
def hook_on_a_result(x: Tensor) -> Tensor:
    y = x * 2
    y.register_hook(lambda gradient: gradient * 2)
    return (y * 3).sum()


@called(grad=True)
def gradient_retained(x: Tensor) -> Tensor:
    y = x * 2
    y.retain_grad()
    return (y * 3).sum()


@called(grad=True)
def gradient_function_asked(x: Tensor) -> Tensor:
    y = x * 2
    return y * 3 if y.grad_fn is not None else y


@called()
def shared_memory(x: Tensor) -> Tensor:
    y = x * 2
    y.share_memory_()
    return y + 1


@called()
def saved(x: Tensor) -> Tensor:
    y = x * 2
    torch.save({"step": 1}, os.devnull)
    return y + 1


@called()
def file_read(x: Tensor) -> Tensor:
    y = x * 2
    with open(os.devnull) as file:  # noqa: PTH123 - what programs write
        text = file.read()
    return y + len(text)


@called((8,), (8,), (8,))
def counted_in_a_global(x: Tensor) -> Tensor:
    _COUNTS["calls"] = _COUNTS.get("calls", 0) + 1
    return x * 2


_COUNTS: dict[str, int] = {}


@called()
def interpolated(x: Tensor) -> Tensor:
    return nn.functional.interpolate(x.view(1, 1, 8), scale_factor=2.0) * 2


@called()
def moved_to_the_cpu(x: Tensor) -> Tensor:
    return (x * 2).cpu() + 1


@called()
def tensor_of_a_read(x: Tensor) -> Tensor:
    return x + torch.tensor([x.sum().item(), 2.0], device=x.device).sum()


@called()
def tensor_of_tensors(x: Tensor) -> Tensor:
    return x + torch.tensor([x[0], x[1]], device=x.device).sum()


@called()
def stacked_tensors(x: Tensor) -> Tensor:
    return torch.stack([part * 2 for part in x.unbind()])


@called()
def address_compared(x: Tensor) -> Tensor:
    y = x * 2
    if y.data_ptr() == 0:
        torch._dynamo.graph_break()
    return y + 1


@called()
def least_squares(x: Tensor) -> Tensor:
    return torch.linalg.lstsq(torch.diag(x.flatten()[:4] * 2), torch.eye(4, device=x.device)).solution + 1
