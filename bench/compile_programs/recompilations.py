"""What compiles a function again: sizes, numbers, types, modes, settings."""

import functools
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._dynamo import mark_dynamic, mark_static, maybe_mark_dynamic

from compile_programs import Compile, called, program


@called((8,), (9,), (10,))
def sizes(x: Tensor) -> Tensor:
    return x * 2


@called((8, 4), (9, 4), (9, 5), (10, 6))
def sizes_of_two_dimensions(x: Tensor) -> Tensor:
    return x.sum(0)


@called((8,), (9,), dynamic=True)
def dynamic_from_the_start(x: Tensor) -> Tensor:
    return x * 2


@called((8,), (9,), (10,), dynamic=False)
def never_dynamic(x: Tensor) -> Tensor:
    return x * 2


@called((8,), (1,), (2,), (1,), (0,))
def one_and_zero(x: Tensor) -> Tensor:
    return x * 2


@called((4,), (8,), (16,), (12,), (32,))
def condition_on_a_size(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 10 else x * 3


@called((4,), (6,), (7,), (8,))
def divisible_size(x: Tensor) -> Tensor:
    return x.view(2, -1) if x.shape[0] % 2 == 0 else x


@called((2,), (3,), (4,))
def loop_over_a_size(x: Tensor) -> Tensor:
    for k in range(x.shape[0]):
        x = x + k
    return x


@called((4, 4), (5, 5), (6, 6), (6, 7))
def equal_sizes(x: Tensor) -> Tensor:
    return x @ x.t()


@called((4, 3), (4, 5), (4, 6))
def reshaped(x: Tensor) -> Tensor:
    return x.view(-1).view(x.shape[1], x.shape[0])


@called((2, 3), (2, 3, 4), (2, 3))
def dimensions(x: Tensor) -> Tensor:
    return x * 2


@program
def sequences(device: str, compile: Compile) -> None:
    """Batches of text, the last one smaller."""
    lengths = nn.Sequential(nn.Embedding(16, 8), nn.Linear(8, 4)).to(device)
    compiled = compile(lengths)
    for rows, columns in ((4, 8), (4, 8), (4, 12), (4, 7), (3, 9)):
        compiled(torch.zeros(rows, columns, dtype=torch.long, device=device))


@program
def last_batch(device: str, compile: Compile) -> None:
    model = nn.Linear(4, 4).to(device)
    compiled = compile(model)
    for _ in range(2):
        for rows in (8, 8, 3):
            compiled(torch.ones(rows, 4, device=device)).sum().backward()


@program
def marked_dynamic(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for size in (8, 9, 10):
        x = torch.ones(size, device=device)
        mark_dynamic(x, 0)
        compiled(x)


@program
def marked_dynamic_with_bounds(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for size in (8, 9, 10, 100):
        x = torch.ones(size, device=device)
        if size < 50:
            mark_dynamic(x, 0, min=2, max=64)
        compiled(x)


@program
def maybe_marked(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2 if x.shape[0] > 3 else x)
    for size in (8, 9, 2):
        x = torch.ones(size, device=device)
        maybe_mark_dynamic(x, 0)
        compiled(x)


@program
def marked_static(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for size in (8, 9, 10):
        x = torch.ones(size, device=device)
        mark_static(x, 0)
        compiled(x)


@program
def marked_unbacked(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for size in (8, 9, 1):
        x = torch.ones(size, device=device)
        torch._dynamo.decorators.mark_unbacked(x, 0)
        compiled(x)


@program
def marked_dynamic_but_constant(device: str, compile: Compile) -> None:
    """PyTorch refuses a size that was marked and that the code makes a constant."""
    compiled = compile(lambda x: x.view(8) * 2)
    x = torch.ones(8, device=device)
    mark_dynamic(x, 0)
    with suppress(torch._dynamo.exc.UserError, RuntimeError):
        compiled(x)


@program
def counts(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, count: x * count)
    for count in (2, 3, 4, 1, 0):
        compiled(torch.ones(8, device=device), count)


@program
def steps_passed(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, step: x * 2 if step % 2 == 0 else x)
    for step in range(5):
        compiled(torch.ones(8, device=device), step)


@program
def slices_by_numbers(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, end: x[:end] * 2)
    for end in (3, 4, 5, 8):
        compiled(torch.ones(8, device=device), end)


@program
def positions(device: str, compile: Compile) -> None:
    """A cache that is written at a position, as in decoding."""
    cache = torch.zeros(16, 4, device=device)

    def step(x: Tensor, position: int) -> Tensor:
        cache[position] = x
        return cache[: position + 1].sum(0)

    compiled = compile(step)
    for position in range(5):
        compiled(torch.ones(4, device=device), position)


@program
def positions_as_tensors(device: str, compile: Compile) -> None:
    cache = torch.zeros(16, 4, device=device)

    def step(x: Tensor, position: Tensor) -> Tensor:
        cache.index_copy_(0, position, x.unsqueeze(0))
        return cache.sum(0)

    compiled = compile(step)
    for position in range(4):
        compiled(torch.ones(4, device=device), torch.tensor([position], device=device))


@program
def growing_cache(device: str, compile: Compile) -> None:
    compiled = compile(lambda cache, x: torch.cat([cache, x]))
    cache = torch.ones(4, 2, device=device)
    for _ in range(4):
        cache = compiled(cache, torch.ones(1, 2, device=device))


@program
def flags(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, flag: x * 2 if flag else x * 3)
    for flag in (True, False, True):
        compiled(torch.ones(8, device=device), flag)


@program
def optional_tensor(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, mask=None: x if mask is None else x * mask)
    x = torch.ones(8, device=device)
    for mask in (None, x, None, x):
        compiled(x, mask)


@program
def keyword_or_position(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, scale: x * scale)
    x = torch.ones(8, device=device)
    compiled(x, 2)
    compiled(x, scale=2)
    compiled(scale=3, x=x)


@program
def lists_of_tensors(device: str, compile: Compile) -> None:
    compiled = compile(lambda xs: sum(xs))
    for count in (2, 3, 2, 4):
        compiled([torch.ones(8, device=device) for _ in range(count)])


@program
def dictionaries(device: str, compile: Compile) -> None:
    compiled = compile(lambda batch: batch["x"] * batch.get("scale", 1))
    x = torch.ones(8, device=device)
    for batch in ({"x": x}, {"x": x, "scale": 2}, {"x": x, "scale": 3}, {"x": x, "other": 1}):
        compiled(batch)


@program
def types_of_tensors(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.float32):
        compiled(torch.ones(8, device=device, dtype=dtype))


@program
def strides(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    x = torch.ones(4, 6, device=device)
    for one in (x, x.t(), x[:, ::2], x):
        compiled(one)


@program
def channels_last(device: str, compile: Compile) -> None:
    compiled = compile(nn.Conv2d(3, 4, 3).to(device))
    x = torch.ones(2, 3, 8, 8, device=device)
    for one in (x, x.to(memory_format=torch.channels_last), x):
        compiled(one)


@program
def offset_of_storage(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    x = torch.ones(16, device=device)
    for one in (x[:8], x[8:], x[4:12]):
        compiled(one)


@program
def gradients_asked_for(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for needed in (True, False, True):
        compiled(torch.ones(8, device=device, requires_grad=needed))


@program
def gradients_off(device: str, compile: Compile) -> None:
    model = nn.Linear(4, 4).to(device)
    compiled = compile(model)
    x = torch.ones(2, 4, device=device)
    compiled(x).sum().backward()
    with torch.no_grad():
        compiled(x)
    with torch.inference_mode():
        compiled(x)
    compiled(x)


@program
def autocast_on(device: str, compile: Compile) -> None:
    compiled = compile(nn.Linear(4, 4).to(device))
    x = torch.ones(2, 4, device=device)
    compiled(x)
    with torch.autocast(device, dtype=torch.bfloat16):
        compiled(x)
    with torch.autocast(device, dtype=torch.float16):
        compiled(x)
    compiled(x)


@program
def default_type(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x + torch.ones(8, device=x.device))
    x = torch.ones(8, device=device)
    compiled(x)
    torch.set_default_dtype(torch.float64)
    try:
        compiled(x)
    finally:
        torch.set_default_dtype(torch.float32)


@program
def deterministic(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    x = torch.ones(8, device=device)
    compiled(x)
    torch.use_deterministic_algorithms(True)
    try:
        compiled(x)
    finally:
        torch.use_deterministic_algorithms(False)


@program
def same_tensor_twice(device: str, compile: Compile) -> None:
    compiled = compile(lambda a, b: a + b)
    x, y = (torch.ones(8, device=device) for _ in range(2))
    for pair in ((x, y), (x, x), (y, x)):
        compiled(*pair)


@program
def views_of_one_tensor(device: str, compile: Compile) -> None:
    def added(a: Tensor, b: Tensor) -> Tensor:
        a.add_(1)
        return a + b

    compiled = compile(added)
    x = torch.ones(16, device=device)
    compiled(x[:8], x[8:])
    compiled(torch.ones(8, device=device), torch.ones(8, device=device))


@program
def new_function_each_time(device: str, compile: Compile) -> None:
    x = torch.ones(8, device=device)
    for _ in range(3):
        compile(lambda y: y * 2)(x)


@program
def compiled_again_each_time(device: str, compile: Compile) -> None:
    x = torch.ones(8, device=device)

    def function(y: Tensor) -> Tensor:
        return y * 2

    for _ in range(3):
        compile(function)(x)


@program
def closures_with_numbers(device: str, compile: Compile) -> None:
    x = torch.ones(8, device=device)

    def scaling(factor: float) -> Any:
        return lambda y: y * factor

    for factor in (2.0, 3.0, 4.0):
        compile(scaling(factor))(x)


_scale = 1


@program
def global_number(device: str, compile: Compile) -> None:
    global _scale
    compiled = compile(lambda x: x * _scale)
    for _scale in (1, 2, 3, 2):
        compiled(torch.ones(8, device=device))


_NAMES = ["a"]


@program
def global_list(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * len(_NAMES))
    for _ in range(3):
        compiled(torch.ones(8, device=device))
        _NAMES.append("b")
    del _NAMES[1:]


@program
def default_arguments(device: str, compile: Compile) -> None:
    def scaled(x: Tensor, factor: float = 2.0, *, shift: int = 0) -> Tensor:
        return x * factor + shift

    compiled = compile(scaled)
    x = torch.ones(8, device=device)
    compiled(x)
    compiled(x, 2.0)
    compiled(x, shift=1)
    compiled(x, 3.0, shift=2)


@program
def variable_arguments(device: str, compile: Compile) -> None:
    def added(*xs: Tensor, **named: Tensor) -> Tensor:
        return sum(xs) + sum(named.values())  # type: ignore[return-value]

    compiled = compile(added)
    x = torch.ones(8, device=device)
    compiled(x, x, a=x)
    compiled(x, a=x)
    compiled(x, a=x, b=x)


@program
def devices(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for one in (torch.ones(8, device=device), torch.ones(8, device="meta"), torch.ones(8, device=device)):
        compiled(one)


@program
def parameter_or_tensor(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for one in (torch.ones(8, device=device), nn.Parameter(torch.ones(8, device=device))):
        compiled(one)


@program
def single_values(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, scale: x * scale)
    x = torch.ones(8, device=device)
    for scale in (2.0, torch.tensor(2.0), 3):
        compiled(x, scale)


@called((8,), (9,), (10,), (11,))
def sizes_behind_a_break(x: Tensor) -> Tensor:
    y = x * 2
    torch._dynamo.graph_break()
    return y + x.shape[0]


@program
def limit_reached(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, name: x * len(name))
    with torch._dynamo.config.patch(recompile_limit=3):
        for count in range(1, 7):
            compiled(torch.ones(8, device=device), "a" * count)


@program
def limit_of_its_own(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, name: x * len(name), recompile_limit=2)
    for count in range(1, 5):
        compiled(torch.ones(8, device=device), "a" * count)


@program
def random_number_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, scale: x * scale)
    for scale in (0.1, 0.25, 0.7, 0.25):
        compiled(torch.ones(8, device=device), scale)


@program
def epochs_and_rates(device: str, compile: Compile) -> None:
    def blended(x: Tensor, epoch: int, rate: float) -> Tensor:
        return x * rate if epoch > 2 else x

    compiled = compile(blended)
    for epoch in range(5):
        compiled(torch.ones(8, device=device), epoch, 0.1 * (epoch + 1))


@called((8,), (8,), (8,), (8,))
def random_number_each_call(x: Tensor) -> Tensor:
    return x * random.random()


@called((8,), (8,), (8,), (8,))
def random_choice_each_call(x: Tensor) -> Tensor:
    return x * 2 if random.random() < 2 else x


@called((8,), (8,), (8,), (8,))
def time_each_call(x: Tensor) -> Tensor:
    return x * time.time()


@called((8,), (8,), (8,), (8,))
def numpy_number_each_call(x: Tensor) -> Tensor:
    return x * float(np.random.uniform())


@program
def lists_read(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * sum(x.tolist()))
    for value in (1.0, 2.0, 3.0):
        compiled(torch.full((4,), value, device=device))


@program
def lengths_read(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, lengths: [part * 2 for part in x.split(lengths.tolist())])
    for lengths in ([3, 5], [4, 4], [2, 6]):
        compiled(torch.ones(8, device=device), torch.tensor(lengths, device=device))


@program
def numbers_read(device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * int(x.sum().item()))
    for value in (1.0, 2.0, 3.0, 4.0):
        compiled(torch.full((4,), value, device=device))


@program
def without_device(_device: str, compile: Compile) -> None:
    compiled = compile(lambda x: x * 2)
    for one in (torch.ones(8), torch.ones(8, device="meta"), torch.ones(8)):
        compiled(one)


def _passed_on(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    @functools.wraps(function)
    def wrapper(self: nn.Module, *args: object, **kwargs: object) -> Tensor:
        return function(self, *args, **kwargs)

    return wrapper


class _Settings:
    kind: str | None = None


class _DecidesOnce(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.settings = _Settings()
        self.settings.kind = None

    @_passed_on
    def forward(self, x: Tensor) -> Tensor:
        if self.settings.kind is None:
            self.settings.kind = "classes"
        return x * 2


@program
def forward_with_a_decorator(device: str, compile: Compile) -> None:
    model = compile(_DecidesOnce())
    for _ in range(3):
        model(torch.ones(8, device=device))
