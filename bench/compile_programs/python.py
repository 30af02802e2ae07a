"""Python in compiled code: classes, containers, generators, closures."""

import collections
import dataclasses
import enum
import functools
import itertools
import threading
import types
import typing
import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from compile_programs import Compile, called, program


def _parts(x: Tensor) -> Iterator[Tensor]:
    for k in range(3):
        yield x + k


@called()
def generator(x: Tensor) -> Tensor:
    return sum(_parts(x))  # type: ignore[return-value]


@called()
def generator_with_a_break(x: Tensor) -> Tensor:
    def parts() -> Iterator[Tensor]:
        for k in range(2):
            torch._dynamo.graph_break()
            yield x + k

    return sum(parts())  # type: ignore[return-value]


@program
def generator_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, parts: x + next(parts))
    x = torch.ones(8, device=device)
    compiled(x, _parts(x))


@program
def generator_compiled(device: str, compile: Compile) -> None:
    list(compile(_parts)(torch.ones(8, device=device)))


@program
def zip_given(device: str, compile: Compile) -> None:
    def added(x: Tensor, pairs: Any) -> Tensor:
        for first, second in pairs:
            x = x + first * second
        return x

    compile(added)(torch.ones(8, device=device), zip(range(3), range(3), strict=True))


@program
def dictionary_items_given(device: str, compile: Compile) -> None:
    def added(x: Tensor, items: Any) -> Tensor:
        for _, value in items:
            x = x + value
        return x

    compile(added)(torch.ones(8, device=device), {"a": 1, "b": 2}.items())


@dataclasses.dataclass
class _Batch:
    images: Tensor
    scale: float = 2.0


@program
def data_class_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda batch: batch.images * batch.scale)
    for _ in range(2):
        compiled(_Batch(torch.ones(8, device=device)))


@called()
def data_class_made(x: Tensor) -> Tensor:
    batch = _Batch(x * 2)
    torch._dynamo.graph_break()
    return batch.images * batch.scale


@dataclasses.dataclass(frozen=True)
class _Settings:
    width: int = 4


@program
def frozen_settings_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, settings: x * settings.width)
    for width in (4, 5, 4):
        compiled(torch.ones(8, device=device), _Settings(width))


_Pair = collections.namedtuple("_Pair", ["first", "second"])


@called()
def named_tuple_made(x: Tensor) -> Tensor:
    pair = _Pair(x * 2, x * 3)
    torch._dynamo.graph_break()
    return pair.first + pair.second


class _Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


@program
def enumeration_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, mode: x * 2 if mode is _Mode.TRAIN else x * 3)
    for mode in (_Mode.TRAIN, _Mode.TEST, _Mode.TRAIN):
        compiled(torch.ones(8, device=device), mode)


class _Scale:
    def __init__(self, factor: float) -> None:
        self.factor = factor
        self.calls = 0

    def __call__(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * self.factor

    @property
    def double(self) -> float:
        return 2 * self.factor


@program
def object_called(device: str, compile: Compile) -> None:
    compiled = compile(_Scale(2.0))
    for _ in range(3):
        compiled(torch.ones(8, device=device))


@program
def objects_given(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, scale: scale(x))
    for factor in (2.0, 3.0, 4.0):
        compiled(torch.ones(8, device=device), _Scale(factor))


@program
def property_read(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, scale: x * scale.double)
    for factor in (2.0, 3.0, 4.0):
        compiled(torch.ones(8, device=device), _Scale(factor))


@program
def object_changed(device: str, compile: Compile) -> None:
    scale = _Scale(2.0)
    compiled = compile(lambda x: x * scale.factor)
    for factor in (2.0, 3.0, 2.0, 4.0):
        scale.factor = factor
        compiled(torch.ones(8, device=device))


class _Lazy:
    def __getattr__(self, name: str) -> int:
        return len(name)


@program
def attribute_made_up(device: str, compile: Compile) -> None:
    compiled = compile(lambda x, lazy: x * lazy.four)
    compiled(torch.ones(8, device=device), _Lazy())


class _Base:
    def scaled(self, x: Tensor) -> Tensor:
        return x * 2


class _Derived(_Base):
    def scaled(self, x: Tensor) -> Tensor:
        return super().scaled(x) + 1


@program
def method_of_a_base_class(device: str, compile: Compile) -> None:
    compile(_Derived().scaled)(torch.ones(8, device=device))


@program
def methods_of_two_objects(device: str, compile: Compile) -> None:
    for one in (_Derived(), _Derived()):
        compile(one.scaled)(torch.ones(8, device=device))


@called()
def iterators(x: Tensor) -> Tensor:
    for a, b in itertools.product(range(2), range(2)):
        x = x + a * b
    for k in itertools.chain([1], (2,)):
        x = x * k
    return x + sum(itertools.accumulate([1, 2, 3]))


@called()
def groups(x: Tensor) -> Tensor:
    for key, found in itertools.groupby([1, 1, 2]):
        x = x + key * len(list(found))
    return x


@called()
def partial_function(x: Tensor) -> Tensor:
    return functools.partial(torch.add, alpha=2)(x, x)


@called()
def reduced(x: Tensor) -> Tensor:
    return functools.reduce(torch.add, [x, x * 2, x * 3])


@called()
def wrapped_function(x: Tensor) -> Tensor:
    @functools.wraps(_parts)
    def wrapped(y: Tensor) -> Tensor:
        return y * 2

    return wrapped(x)


@called()
def closure_changed(x: Tensor) -> Tensor:
    count = 0

    def bump(y: Tensor) -> Tensor:
        nonlocal count
        count += 1
        return y * count

    return bump(bump(x))


@called()
def function_returned(x: Tensor) -> Any:
    y = x * 2

    def later(z: Tensor) -> Tensor:
        return y + z

    return later


@called()
def set_of_tensors(x: Tensor) -> Tensor:
    kept = {x, x * 2}
    return sum(kept)  # type: ignore[return-value]


@called()
def dictionary_of_tensors(x: Tensor) -> Tensor:
    by_name = {"a": x, "b": x * 2}
    torch._dynamo.graph_break()
    return by_name["a"] + by_name["b"]


@called()
def default_dictionary(x: Tensor) -> Tensor:
    lists: dict[str, list[Tensor]] = collections.defaultdict(list)
    lists["a"].append(x * 2)
    return lists["a"][0] + 1


@called()
def ordered_dictionary(x: Tensor) -> Tensor:
    ordered = collections.OrderedDict(a=x, b=x * 2)
    ordered.move_to_end("a")
    return sum(ordered.values())  # type: ignore[return-value]


@called()
def weak_reference(x: Tensor) -> Tensor:
    scale = _Scale(2.0)
    kept = weakref.ref(scale)
    found = kept()
    return x * (1.0 if found is None else found.factor)


_LOCK = threading.Lock()


@called()
def lock_taken(x: Tensor) -> Tensor:
    with _LOCK:
        y = x * 2
    return y + 1


@called()
def hasattr_asked(x: Tensor) -> Tensor:
    return x * 2 if hasattr(x, "device") and not hasattr(x, "note") else x


@called()
def type_checked(x: Tensor) -> Tensor:
    return x * 2 if isinstance(x, Tensor) and issubclass(type(x), Tensor) else x


@called()
def local_names(x: Tensor) -> Tensor:
    y = x * 2
    return y + len(locals())


@called()
def global_names(x: Tensor) -> Tensor:
    return x * 2 if "called" in globals() else x


@called()
def string_work(x: Tensor) -> Tensor:
    name = "-".join(["a", "b"]).upper().replace("A", "c")
    return x * len(name.split("-"))


@called()
def imported_inside(x: Tensor) -> Tensor:
    import math

    return x * math.pi


@called()
def deleted(x: Tensor) -> Tensor:
    y = x * 2
    z = y + 1
    del y
    torch._dynamo.graph_break()
    return z * 2


@called()
def matched(x: Tensor) -> Tensor:
    match x.shape:
        case (8,):
            return x * 2
        case _:
            return x


@called()
def walrus_and_star(x: Tensor) -> Tensor:
    first, *rest = x.unbind()
    if (count := len(rest)) > 2:
        return first * count
    return first


@called()
def simple_namespace(x: Tensor) -> Tensor:
    space = types.SimpleNamespace(factor=2)
    return x * space.factor


class _Typed(typing.TypedDict, total=False):
    factor: int


@called()
def typed_dictionary(x: Tensor) -> Tensor:
    typed = _Typed(factor=2)
    return x * typed["factor"]


class _Meta(type):
    def __getattribute__(cls, name: str) -> Any:
        return super().__getattribute__(name)


class _WithMeta(metaclass=_Meta):
    factor = 3


@called()
def metaclass_asked(x: Tensor) -> Tensor:
    return x * _WithMeta.factor


class _WithLength:
    def __len__(self) -> int:
        return 3


@called()
def own_length(x: Tensor) -> Tensor:
    return x * len(_WithLength())


@called()
def exception_group(x: Tensor) -> Tensor:
    try:
        y = {}["a"]
    except KeyError as error:
        y = x * len(error.args)
    return y + 1


@called()
def yield_from(x: Tensor) -> Tensor:
    def parts() -> Iterator[Tensor]:
        yield from _parts(x)

    return next(iter(parts())) * 2


@program
def function_given(device: str, compile: Compile) -> None:
    def applied(function: Any, x: Tensor) -> Tensor:
        return function(x)

    compiled = compile(applied)
    for function in (torch.sin, torch.cos, torch.sin, lambda x: x + 1, lambda x: x + 2):
        compiled(function, torch.ones(8, device=device))


@program
def recursion(device: str, compile: Compile) -> None:
    def power(x: Tensor, times: int) -> Tensor:
        return x if times == 0 else power(x, times - 1) * x

    compiled = compile(power)
    for times in (2, 3):
        compiled(torch.ones(8, device=device), times)


@program
def result_kept_outside(device: str, compile: Compile) -> None:
    kept: list[Tensor] = []

    def function(x: Tensor) -> Tensor:
        y = x * 2
        kept.append(y)
        return y + 1

    compiled = compile(function)
    for _ in range(3):
        compiled(torch.ones(8, device=device))


@program
def attribute_counted(device: str, compile: Compile) -> None:
    class Counter:
        steps = 0

    counter = Counter()

    def function(x: Tensor) -> Tensor:
        counter.steps += 1
        return x * 2

    compiled = compile(function)
    for _ in range(4):
        compiled(torch.ones(8, device=device))


@program
def attribute_counted_and_used(device: str, compile: Compile) -> None:
    class Counter:
        steps = 0

    counter = Counter()

    def function(x: Tensor) -> Tensor:
        counter.steps += 1
        return x * counter.steps

    compiled = compile(function)
    for _ in range(4):
        compiled(torch.ones(8, device=device))


@program
def iterator_of_a_list_given(device: str, compile: Compile) -> None:
    def function(x: Tensor, others: Iterator[Tensor]) -> Tensor:
        for other in others:
            x = x + other
        return x

    compiled = compile(function)
    for _ in range(3):
        compiled(torch.ones(8, device=device), iter([torch.ones(8, device=device) for _ in range(3)]))


@program
def map_given(device: str, compile: Compile) -> None:
    def function(x: Tensor, others: Iterator[Tensor]) -> Tensor:
        for other in others:
            x = x + other
        return x

    compiled = compile(function)
    for _ in range(3):
        compiled(torch.ones(8, device=device), map(torch.neg, [torch.ones(8, device=device)] * 3))


@program
def iterators_of_numbers(device: str, compile: Compile) -> None:
    def function(x: Tensor, numbers: Iterator[int]) -> Tensor:
        for number in numbers:
            x = x + number
        return x

    compiled = compile(function)
    for length in (3, 4, 5):
        compiled(torch.ones(8, device=device), iter(range(length)))


@program
def attribute_of_a_class_changed(device: str, compile: Compile) -> None:
    class Settings:
        scale = 1.0

    settings = Settings()
    compiled = compile(lambda x: x * settings.scale)
    for number in range(4):
        Settings.scale = 1.0 + number
        compiled(torch.ones(8, device=device))
