"""One operator call on the virtual device: judge it by the rules, run it on the CPU, wrap what comes out."""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from steptrace.predict import backend, collectives, uncomputed
from steptrace.predict.recorder import Syncs
from steptrace.predict.rule import Call, Rule
from steptrace.predict.rules import RULES
from steptrace.predict.rules_libraries import SPARSE_JUDGED
from steptrace.predict.substitutes import SUBSTITUTES
from steptrace.predict.tensor import (
    VirtualTensor,
    is_pinned,
    is_virtual,
    is_wrapper,
    map_tensors,
    mark_pinned,
    refresh,
    unwrap,
)

_COMPOSITE = "CompositeImplicitAutograd"
_DATA_DEPENDENT = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
_PYTORCHS_OWN = {"aten", "prims", "prim", "profiler"}
#: Operators that copy between devices, or only ask for shapes.
_ANY_DEVICES = {
    "_to_copy", "copy_", "_foreach_copy", "_foreach_copy_", "as_strided_scatter", "diagonal_scatter", "select_scatter",
    "slice_scatter", "is_same_size", "is_set_to", "resize_as_", "_use_cudnn_ctc_loss",
}  # fmt: skip
#: Operators that take some tensor with dimensions from the host, such as lengths.
_TAKE_FROM_HOST = {
    "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss", "_cudnn_ctc_loss", "_cudnn_rnn",
    "_cudnn_rnn_backward", "tensor_split", "_segment_reduce_backward", "bernoulli", "bernoulli_",
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "rrelu_with_noise_backward",
}  # fmt: skip
#: Operators whose second argument, the indices, may lie on the host.
_INDEX = re.compile(r"_?(unsafe_)?index(_put)?(_impl)?_?")
#: Operators that take a single value from another GPU; elsewhere it is refused as any other tensor of one is.
_VALUE_OF_ANY_GPU = re.compile(r"where|fill_?|(masked|index)_fill_?|_?(unsafe_)?index_put(_impl)?_?")

#: Types of devices that name the virtual one; C++ may have got "cuda" from PyTorch's own Python.
_VIRTUAL = (backend.DEVICE_TYPE, "cuda")
#: Operators of which one result, by position, lies on the CPU even if the others do not.
_HOST_RESULT = {"aten::_pack_padded_sequence": 1, "aten::_pad_packed_sequence": 1}
_FORMULAS = "torch/csrc/autograd/FunctionsManual.cpp"
#: Autograd nodes that read from CUDA tensors whether there are zeros, by their formula's name and source.
_READS_ZEROS = {
    "ProdBackward0": f"{_FORMULAS}: prod_backward takes nonzero() of the zeros",
    "ProdBackward1": f"{_FORMULAS}: prod_backward reads how many zeros there are",
    "CumprodBackward0": f"{_FORMULAS}: cumprod_backward reads whether there are zeros",
}


class VirtualDevice(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Catches what has no virtual tensor among its arguments: factories, copies to the device, pinning."""

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if any(map(is_wrapper, types)):
            return NotImplemented  # nested and distributed tensors work on those that they hold, and come by with them
        with torch._C.DisableTorchFunction():  # what is asked of tensors meanwhile is not the program's
            return run(func, args, kwargs or {})


def _by_op(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    return {op: [rule for rule in rules if rule.op == op] for op in dict.fromkeys(rule.op for rule in rules)}


_TABLE = _by_op(RULES)
#: The rows by operator, replaced for the time of a prediction by those with the user's own.
_table = _TABLE


def use_rules(extra: Sequence[Rule]) -> None:
    """Judge by the table and by `extra`, of which a row replaces the table's rows of the same name."""
    global _table
    _table = _TABLE | _by_op(extra)


def extend_rules(extra: Sequence[Rule]) -> None:
    """Judge by `extra` too from now on, until the prediction ends."""
    global _table
    _table = _table | _by_op(extra)


def _rules_of(func: Any) -> list[Rule] | None:
    """The rows of an operator, by its overload or else its name; None if the table has none."""
    name = _packet(func) if func.namespace == "aten" else func._schema.name
    return _table.get(f"{name}.{func._overloadname}") or _table.get(name)


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one operator, whatever mixture of devices it is called with."""
    # In inference mode `aten::to` arrives whole, and may name its device by position.
    target = kwargs.get("device") or next((value for value in args if isinstance(value, torch.device)), None)
    to_virtual = target is not None and torch.device(target).type in _VIRTUAL
    tensors = [leaf for leaf in _leaves(args, kwargs) if isinstance(leaf, Tensor)]
    if not to_virtual and not any(map(is_virtual, tensors)):
        return _run_on_host(func, args, kwargs)
    if _is_composite(func):
        # In inference mode composite operators arrive whole.
        with VirtualDevice():  # type: ignore[no-untyped-call]  # factories inside must be caught too
            decomposed = func.decompose(*args, **kwargs)
        if decomposed is not NotImplemented:
            return decomposed
    _refuse_devices(func, args, tensors)
    _judge(func, args, kwargs, tensors)
    return _run_on_device(func, args, kwargs)


@cache
def _is_composite(func: Any) -> bool:
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _COMPOSITE)


def _refuse_devices(func: Any, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Raise as CUDA does for tensors of several devices; a single value may lie on the host."""
    if func is torch.ops.aten._pack_padded_sequence.default and is_virtual(args[1]):
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got one on {args[1].device}")
    if func.namespace != "aten" or len({tensor.device for tensor in tensors}) < 2:
        return
    for together in _on_one_device(_packet(func), args, tensors):
        devices = {str(tensor.device) for tensor in together if is_virtual(tensor) or tensor.dim() > 0}
        if len(devices) > 1:
            message = "Expected all tensors to be on the same device, but found at least two devices, "
            raise RuntimeError(f"{message}{' and '.join(sorted(devices, reverse=True))}! ({func.name()})")


def _on_one_device(packet: str, args: Sequence[Any], tensors: Sequence[Tensor]) -> list[Sequence[Tensor]]:
    """The groups of an operator's tensors, each of which has to be on one device."""
    if packet in _ANY_DEVICES:
        return []
    if "_foreach_" in packet:  # the tensors of one place in all lists, with those that are for all places
        lists = [value for value in args if isinstance(value, list | tuple)]
        places = zip(*lists, strict=False)
        return [[value for value in (*place, *args) if isinstance(value, Tensor)] for place in places]
    together = tensors
    if packet in _TAKE_FROM_HOST:
        together = list(filter(is_virtual, together))
    elif _INDEX.fullmatch(packet):
        indices = set(map(id, args[1]))
        together = [tensor for tensor in together if is_virtual(tensor) or id(tensor) not in indices]
    if _VALUE_OF_ANY_GPU.fullmatch(packet):
        together = [tensor for tensor in together if tensor.dim() > 0]
    return [together]


@cache
def _packet(func: Any) -> str:
    """The operator's name without namespace and overload."""
    return str(func._schema.name.partition("::")[2])


def _leaves(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    leaves: list[Any] = []
    map_tensors(leaves.append, [*args, *kwargs.values()])
    return leaves


def _run_on_host(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    name = func._schema.name
    if name == "aten::is_pinned":
        return is_pinned(args[0])
    if name in ("aten::_pin_memory", "aten::pin_memory"):
        return args[0] if is_pinned(args[0]) else mark_pinned(args[0].clone())
    if kwargs.get("pin_memory"):
        return mark_pinned(func(*args, **{**kwargs, "pin_memory": False}))
    if uncomputed.skips_initialising(func, args):
        return args[0]
    return func(*args, **kwargs)


def _bind(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments by the schema's names, with its defaults."""
    bound = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    bound.update(zip((a.name for a in func._schema.arguments), args, strict=False))
    bound.update(kwargs)
    return bound


def _judge(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], tensors: Sequence[Tensor]) -> None:
    recorder = Syncs.active
    if recorder is None:
        return
    recorder.begins(func, tensors, from_host=_comes_from_host(func, args))
    _judge_node(torch._C._current_autograd_node(), recorder)
    name = func._schema.name
    if not func.is_view:
        recorder.operator()
    rules = _rules_of(func)
    if rules is not None:
        call = Call(_bind(func, args, kwargs))
        for rule in rules:
            count = rule.count(call)
            if count is None:
                recorder.cannot_judge(name, rule.reason)
            elif count:
                recorder.sync(rule.kind, name, rule.reason, count)
    elif func.namespace in collectives.NAMESPACES:
        collectives.judge(name, _bind(func, args, kwargs), recorder)
    elif func.namespace not in _PYTORCHS_OWN:
        recorder.cannot_judge(name, "a custom operator: what its code does on CUDA is not known; add a rule for it")
    elif _DATA_DEPENDENT & set(func.tags):
        recorder.cannot_judge(name, "its result depends on the data, and no rule says how CUDA finds its size")
    packet = _packet(func)
    layouts = {t.layout for t in tensors} - {torch.strided}
    if layouts and not (layouts == {torch.sparse_coo} and packet in SPARSE_JUDGED):
        recorder.cannot_judge(name, "of the operators on sparse tensors few are covered, and this one is not")


def _comes_from_host(func: Any, args: Sequence[Any]) -> bool:
    """Whether an operator copies a tensor from the host; a single value is no batch."""
    source = {torch.ops.aten._to_copy.default: 0, torch.ops.aten.copy_.default: 1}.get(func)
    return source is not None and not is_virtual(args[source]) and args[source].dim() > 0


def _judge_node(node: Any, recorder: Syncs) -> None:
    """Count what an autograd node does beside its operators, at the first of them."""
    if node is recorder.node:
        return
    recorder.node = node
    source = _READS_ZEROS.get(node.name()) if node is not None else None
    if source is not None and _has_elements(node):
        recorder.sync("d2h_copy", f"autograd::{node.name()}", source)


def _has_elements(node: Any) -> bool:
    """A tensor without dimensions, and one of one element for cumprod, has a gradient without looking."""
    saved = node._saved_self
    return bool(saved.numel() > 1 if node.name() == "CumprodBackward0" else saved.dim() > 0)


def _run_on_device(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run on the tensors inside. Results are virtual unless the call names another device or returns an argument."""
    target = kwargs.get("device")
    stays_virtual = target is None or torch.device(target).type in _VIRTUAL
    inner_kwargs = {name: map_tensors(unwrap, value) for name, value in kwargs.items()}
    if target is not None:
        inner_kwargs["device"] = torch.device("cpu")
    if inner_kwargs.pop("pin_memory", False):
        inner_kwargs["pin_memory"] = False
    if func is torch.ops.aten._to_copy.default:
        inner_kwargs.pop("layout", None)  # C++ takes a compressed sparse tensor for a strided one, and names that
        if is_virtual(args[0]) is not stays_virtual:
            # Leaves or reaches the device: a copy, even where CPU and CPU would share memory.
            inner_kwargs["non_blocking"] = False
    inner_args = [map_tensors(unwrap, value) for value in args]
    if func is torch.ops.aten._to_copy.default and not stays_virtual:
        result = uncomputed.to_host(func, inner_args[0], inner_kwargs.get("dtype"))
        result = result if inner_args[0].is_meta else func(*inner_args, **inner_kwargs)
    elif func is torch.ops.aten.copy_.default and not is_virtual(args[0]):
        result = inner_args[0].copy_(uncomputed.to_host(func, inner_args[1]))
    else:
        result = uncomputed.run(func, SUBSTITUTES.get(func, func), inner_args, inner_kwargs)
    if func is torch.ops.aten._to_copy.default and not stays_virtual:
        if Syncs.active is not None and isinstance(args[0], VirtualTensor) and not args[0].gpu:
            Syncs.active.ran(func, args, kwargs, result)
        return mark_pinned(result) if kwargs.get("non_blocking") else result
    gpu: int | None
    if target is None:
        virtual = (leaf.gpu for leaf in _leaves(args, kwargs) if isinstance(leaf, VirtualTensor))
        gpu = next(virtual, collectives.device_index())
    else:
        gpu = collectives.index_of(torch.device(target)) if stays_virtual else None
    wrapped = _wrap_results(func, _bind(func, args, kwargs), result, gpu)
    if Syncs.active is not None and not func.is_view and not gpu:
        Syncs.active.ran(func, args, kwargs, wrapped)
    return wrapped


def _wrap_results(func: Any, bound: Mapping[str, Any], result: Any, gpu: int | None) -> Any:
    """Give in-place and `out=` arguments back as themselves, and wrap everything new unless it lies on the host."""
    returns = func._schema.returns
    results = result if isinstance(result, tuple) and len(returns) > 1 else (result,)
    written = {
        alias: bound.get(argument.name)
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
        for alias in argument.alias_info.before_set
    }
    for argument in written.values():
        map_tensors(lambda leaf: refresh(leaf) if isinstance(leaf, VirtualTensor) else None, argument)
    # In inference mode, too, a view of a tensor from outside of it is none of an inference tensor.
    views_of_normal = func.is_view and torch.is_inference_mode_enabled() and not _of_inference(bound.values())
    wrapped: list[Any] = []
    for position, (declared, value) in enumerate(zip(returns, results, strict=False)):
        aliases = declared.alias_info.before_set if declared.alias_info is not None else ()
        original = next((written[alias] for alias in aliases if alias in written), None)
        if original is not None:
            wrapped.append(original)
        else:
            of_host = _HOST_RESULT.get(func._schema.name) == position
            wrapped.append(value if gpu is None or of_host else _wrap(value, gpu, normal=views_of_normal))
    if func.namespace == "c10d":
        wrapped[-1] = collectives.with_results(wrapped[-1], wrapped[:-1])
    if not returns:
        return result
    return tuple(wrapped) if len(returns) > 1 else wrapped[0]


def _of_inference(arguments: Iterable[Any]) -> bool:
    return any(leaf.is_inference() for leaf in _leaves(list(arguments), {}) if is_virtual(leaf))


def _wrap(value: Any, gpu: int, *, normal: bool = False) -> Any:
    with torch.inference_mode(mode=False) if normal else nullcontext():
        return map_tensors(lambda leaf: VirtualTensor(leaf, gpu) if isinstance(leaf, Tensor) else leaf, value)
