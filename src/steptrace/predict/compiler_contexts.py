"""Contexts in which Dynamo and Inductor compile for a GPU that is not there, in the middle of a prediction."""

import importlib
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final
from unittest import mock

import torch
from torch import Tensor

from steptrace.predict import backend
from steptrace.torch_names import private

FakeTensor: Any = private("torch._subclasses.fake_tensor.FakeTensor")
FakeTensorMode: Any = private("torch._subclasses.fake_tensor.FakeTensorMode")
#: Inductor replaces products with 0.
_ZEROS: Final = "torch._inductor.fx_passes.joint_graph.UniformValueConstantFolder._add_peephole_patterns"
#: Modules of Inductor that make their patterns at their first use.
_WITH_PATTERNS: Final = ("torch._inductor.fx_passes.joint_graph", "torch._inductor.fx_passes.post_grad")
#: What Dynamo does with each function of PyTorch.
_RULES: Final = "torch._dynamo.trace_rules.get_torch_obj_rule_map"


@contextmanager
def without_function_modes() -> Iterator[None]:
    """Leave the modes that see calls of PyTorch's functions, those of the prediction among them."""
    modes = []
    while private("torch._C._len_torch_function_stack")():
        modes.append(private("torch._C._pop_torch_function_stack")())
    try:
        yield
    finally:
        for mode in reversed(modes):
            private("torch._C._push_on_torch_function_stack")(mode)


@contextmanager
def compiling() -> Iterator[None]:
    """Let Dynamo compile, which a prediction forbids in the program."""
    with torch.compiler.set_stance("default"):
        yield


@contextmanager
def without_saved_tensor_hooks() -> Iterator[None]:
    """Leave the hooks of the program around a call, such as a checkpoint's, which would run its code with real tensors.

    They are not put back: this process is a child that ends afterwards.
    """
    while private("torch._C._autograd._top_saved_tensors_default_hooks")(True) is not None:
        private("torch._C._autograd._pop_saved_tensors_default_hooks")()
    yield


@contextmanager
def as_without_prediction(originals: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Give PyTorch back the attributes that a prediction replaces, by owner and name."""
    with ExitStack() as stack:
        for (owner, name), value in originals.items():
            stack.enter_context(mock.patch.object(owner, name, value))
        yield


@contextmanager
def functions_known(originals: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Dynamo knows PyTorch's functions that have their own form here; `as_without_prediction` has given them back.

    It keeps a table of them, and makes that table anew at `init_process_group`. That may be after a prediction has
    replaced some of them, which then stand in the table in their place. Functions that stay replaced are taken out, so
    that they are followed as Python code.
    """
    table = private(_RULES)
    given_back = {id(function) for function in originals.values()}
    rules = table()
    _take_out_replacements(rules)
    rules.update({function: rule for function, rule in table.__wrapped__().items() if id(function) in given_back})
    yield


def forget_replacements() -> None:
    """Let Dynamo make its table of PyTorch's functions anew after a prediction, if it lost it or made it meanwhile.

    Dynamo has its table from its import on, and loses it at `init_process_group`. A program that compiles for real
    afterwards would otherwise have other graphs.
    """
    table = private(_RULES)
    if table is not None and (not table.cache_info().currsize or any(map(_is_replacement, table()))):
        table.cache_clear()
        _take_out_replacements(table())


def _take_out_replacements(rules: dict[Any, Any]) -> None:
    """Take functions that stand in the place of PyTorch's out of a table, so that they are followed as Python code."""
    for function in [function for function in rules if _is_replacement(function)]:
        del rules[function]


def _is_replacement(function: Any) -> bool:
    """Whether a function stands in the place of one of PyTorch's."""
    return str(getattr(getattr(function, "func", function), "__module__", "")).startswith("steptrace.")


@contextmanager
def devices_named() -> Iterator[None]:
    """Code sees tensors of CUDA, while the fake ones lie on the virtual device, which autograd knows."""
    variable: Any = importlib.import_module("torch._dynamo.variables.tensor").TensorVariable
    tracker: Any = importlib.import_module("torch._dynamo.variables.base").VariableTracker
    dispatch = FakeTensorMode.dispatch

    def named(self: Any, tx: Any) -> Any:
        device = self.device
        if device is not None and device.type == backend.DEVICE_TYPE:
            device = torch.device("cuda", device.index)
        return None if device is None else tracker.build(tx, device)

    def cuda(self: Any, tx: Any, device: Any = None, non_blocking: Any = None, **options: Any) -> Any:
        """`Tensor.cuda`, which asks for a GPU, as `Tensor.to`."""
        wanted = 0 if device is None else device.as_python_constant()
        place = torch.device("cuda", wanted or 0) if wanted is None or isinstance(wanted, int) else torch.device(wanted)
        options = options if non_blocking is None else {**options, "non_blocking": non_blocking}
        return self.call_method(tx, "to", [tracker.build(tx, place)], options)

    def is_cuda(self: Any, tx: Any) -> Any:
        return None if self.device is None else tracker.build(tx, self.device.type in ("cuda", backend.DEVICE_TYPE))

    def virtual(value: Any) -> Any:
        on_cuda = isinstance(value, torch.device) and value.type == "cuda"
        return backend.device(value.index or 0) if on_cuda else value

    def dispatching(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args = tuple(map(virtual, args))
        kwargs = {name: virtual(value) for name, value in (kwargs or {}).items()}
        devices = [device for device in (*args, *kwargs.values()) if isinstance(device, torch.device)]
        if all(device.type != backend.DEVICE_TYPE for device in devices):
            return dispatch(self, func, types, args, kwargs)
        # What is known of a constant would be computed on the device, which has no memory here.
        constants = [(tensor, tensor.constant) for tensor in args if isinstance(tensor, FakeTensor)]
        for tensor, _ in constants:
            tensor.constant = None
        try:
            return dispatch(self, func, types, args, kwargs)
        finally:
            for tensor, constant in constants:
                tensor.constant = constant

    def never(_: object) -> bool:
        return False

    of_optimizers: Any = importlib.import_module("torch.optim.optimizer")
    fused = of_optimizers._get_fused_kernels_supported_devices

    def with_fused() -> list[str]:
        return [*fused(), backend.DEVICE_TYPE]

    # It asks CUDA's allocator, which a build for the CPU does not have.
    optimizers: Any = importlib.import_module("torch._dynamo.variables.optimizer")
    with (
        mock.patch.object(optimizers, "_is_static_for_cudagraphs", never),
        mock.patch.object(of_optimizers, "_get_fused_kernels_supported_devices", with_fused),
        mock.patch.object(variable, "method_attr_device", named),
        mock.patch.object(variable, "method_attr_is_cuda", is_cuda),
        mock.patch.object(variable, "method_cuda", cuda, create=True),
        mock.patch.object(FakeTensorMode, "dispatch", dispatching),
    ):
        yield


def make_patterns(originals: Mapping[tuple[Any, str], Any]) -> None:
    """Import Inductor and make its patterns, which takes seconds, before the first child: all children inherit them.

    Args:
        originals: PyTorch's attributes as they are without a prediction, by owner and name.
    """
    with suppress(Exception), ExitStack() as stack:  # a child tries again, and says what has failed
        importlib.import_module("torch._inductor.compile_fx")
        for context in (
            silent(),
            without_function_modes(),
            private("torch.utils._python_dispatch._disable_current_modes")(),
            as_without_prediction(originals),
            patterns_of_cpu(),
        ):
            stack.enter_context(context)
        for name in _WITH_PATTERNS:
            importlib.import_module(name).lazy_init()  # patched: see `_on_cpu`


@contextmanager
def patterns_of_cpu() -> Iterator[None]:
    """Inductor's patterns are traced on the CPU: on the virtual device nothing can be made without a prediction."""
    with ExitStack() as stack:
        for name in _WITH_PATTERNS:
            module: Any = importlib.import_module(name)
            patterns_of_device = name == "torch._inductor.fx_passes.joint_graph"
            init = _on_cpu(module.lazy_init) if patterns_of_device else _without_device(module.lazy_init)
            stack.enter_context(mock.patch.object(module, "lazy_init", init))
        folder: Any = importlib.import_module("torch._inductor.fx_passes.joint_graph").UniformValueConstantFolder
        stack.enter_context(mock.patch.object(folder, "_deduce_value", _folding_on_cpu(folder._deduce_value)))
        replace_zeros = private(_ZEROS)
        if replace_zeros is not None:
            stack.enter_context(mock.patch.object(folder, "_add_peephole_patterns", _filling_on_cpu(replace_zeros)))
        yield


def _folding_on_cpu(deduce: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Inductor computes constants on the device of their graph, which here has no memory."""

    def on_cpu(value: Any) -> Any:
        on_gpu = isinstance(value, torch.device) and value.type in ("cuda", backend.DEVICE_TYPE)
        return torch.device("cpu") if on_gpu else value

    def deduce_value(self: Any, node: Any) -> Any:
        args = node.args
        kwargs = node.kwargs
        node.args = tuple(map(on_cpu, args))
        node.kwargs = {name: on_cpu(value) for name, value in kwargs.items()}
        try:
            return deduce(self, node)
        finally:
            node.args = args
            node.kwargs = kwargs

    return deduce_value


def _filling_on_cpu(method: Callable[[Any], None]) -> Callable[[Any], None]:
    """The same for constants that Inductor fills in: `torch.full` makes them on the CPU."""
    full = torch.full

    def filled(size: Any, value: Any, **options: Any) -> Tensor:
        return full(size, value, **{**options, "device": "cpu"})

    def on_cpu(self: Any) -> None:
        with mock.patch.object(torch, "full", filled):
            method(self)

    return on_cpu


def _on_cpu(lazy_init: Callable[..., None]) -> Callable[..., None]:
    return lambda _device=None: lazy_init(torch.device("cpu"))


def _without_device(lazy_init: Callable[..., None]) -> Callable[..., None]:
    """Return a call of `lazy_init` with no argument, as Inductor itself calls it.

    Inductor remembers for which argument its patterns were made. With another argument it would make them again in this
    process when the program compiles for real, and it refuses a pattern that is there twice.
    """
    return lambda _device=None: lazy_init()


@contextmanager
def silent() -> Iterator[None]:
    """Show no log of Dynamo and Inductor: the result says what stopped them."""
    names = ("torch._dynamo", "torch._inductor", "torch._functorch", "torch.__trace")
    loggers = [logging.getLogger(name) for name in names]
    with ExitStack() as stack, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)
        yield
