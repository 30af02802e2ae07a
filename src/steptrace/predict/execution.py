"""One operator call on the virtual device: place it, judge it by the rules, compute it on the CPU, wrap the results."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict import backend, collectives, compiled_syncs, custom, uncomputed
from steptrace.predict.memory import PINNED, UNFINISHED
from steptrace.predict.operators import Overload, overload_of, tensors_of
from steptrace.predict.pytorch import DispatchMode, aten, current_node, dispatch_key, functions_off, overload_name
from steptrace.predict.substitutes import SUBSTITUTES, WHOLE
from steptrace.predict.sync_rule import Call
from steptrace.predict.sync_rules import SPARSE_JUDGED, SyncRules
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import VirtualTensor, is_virtual, is_wrapper, map_tensors, refresh
from steptrace.predict.threads import stop_if_ended
from steptrace.torch_names import has

_PYTORCH_NAMESPACES = {"aten", "prims", "prim", "profiler"}
#: Operators that may get a tensor with dimensions from the host: they copy it, look at its shape, or read it there, as
#: lengths.
_TAKE_FROM_HOST = {
    "_to_copy", "copy_", "_foreach_copy", "_foreach_copy_", "as_strided_scatter", "diagonal_scatter", "select_scatter",
    "slice_scatter", "is_same_size", "is_set_to", "resize_as_", "_use_cudnn_ctc_loss",
    "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss", "_cudnn_ctc_loss", "_cudnn_rnn",
    "_cudnn_rnn_backward", "tensor_split", "_segment_reduce_backward", "bernoulli", "bernoulli_",
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "rrelu_with_noise_backward",
}  # fmt: skip
#: Operators on lists that may get their factors in one tensor on the host: the number of arguments before that tensor.
_FACTORS_ON_HOST = dict.fromkeys(("_foreach_addcdiv", "_foreach_addcdiv_", "_foreach_addcmul", "_foreach_addcmul_"), 3)
#: Operators that refuse a single value on the host among tensors of a GPU; most others accept it.
_TAKE_NO_NUMBER = {
    "clamp", "clamp_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_", "isin", "searchsorted", "bucketize",
}  # fmt: skip
#: Operators that may write a single value of a GPU into a tensor of the host. PyTorch first copies the value, and any
#: indices, to the host.
_ASSIGN = {
    "fill", "fill_", "index_fill", "index_fill_", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put",
}  # fmt: skip

#: The dispatch key under which PyTorch's C++ runs a composite operator.
_COMPOSITE = dispatch_key("CompositeImplicitAutograd")
_RUNS_BY_KEY = has("torch.ops.aten.detach.default._op_dk")
#: Operators that write to their first argument without reading it.
_OVERWRITE = {"copy_", "fill_", "zero_"}

#: The operator that accepts lengths only on the host.
_PACK = "_pack_padded_sequence"
_TO_COPY = aten("_to_copy")
_CLONE = aten("clone")
#: Operators that take conjugate and negative views as they are, see `aten/src/ATen/ConjugateFallback.cpp`.
_TAKE_CONJUGATES: Final = {
    "clone", "copy_", "_to_copy", "_conj_physical", "conj_physical", "conj_physical_", "resolve_conj", "resolve_neg",
    "mm", "bmm", "addmm", "baddbmm", "dot", "vdot", "mv", "empty_like", "detach",
}  # fmt: skip
_NESTED = (list, tuple)


class _Inside(threading.local):
    """Whether this thread is inside a composite operator that arrived whole."""

    composite = False


_inside = _Inside()


@contextmanager
def _inside_composite() -> Iterator[None]:
    before, _inside.composite = _inside.composite, True
    try:
        yield
    finally:
        _inside.composite = before


#: Operators by which PyTorch's backward formulas write into new zeros, with the nodes of these formulas. They do so in
#: place, unless a tensor is of a subclass, as those of the virtual device are.
_IN_PLACE: Final = {
    "scatter_add": ("GatherBackward", "CummaxBackward", "CumminBackward"),
    "index_add": ("IndexSelectBackward",),
    "index_fill": ("TraceBackward",),
    "masked_fill": ("Atan2Backward",),
    "masked_scatter": ("MaskedSelectBackward",),
    "scatter": (
        "MaxBackward", "MinBackward", "AmaxBackward", "AminmaxBackward", "MedianBackward", "NanmedianBackward",
        "KthvalueBackward", "ModeBackward", "SortBackward", "TopkBackward", "MsortBackward",
    ),
}  # fmt: skip
#: Index of the argument that `_to_copy`, and that `copy_`, copies.
_MOVED, _SOURCE = 0, 1
#: Substitutes by the identity of the operator, since hashing an operator at every call takes time.
_substitutes = {id(operator): function for operator, function in SUBSTITUTES.items()}
#: Device types that mean the virtual GPU. PyTorch's own Python code may have passed "cuda" to its C++ code.
_VIRTUAL = (backend.DEVICE_TYPE, "cuda")
#: Index of the output that stays on the CPU.
_HOST_RESULT = {"aten::_pack_padded_sequence": 1, "aten::_pad_packed_sequence": 1}


class VirtualDevice(DispatchMode):  # type: ignore[misc]
    """Catches operators without a virtual tensor among their arguments: factories, copies to the device, pinning."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled during a prediction, and the default would check that at each operator

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        stop_if_ended()
        if Syncs.active is None:  # the prediction is over, and the thread goes on
            return func(*args, **(kwargs or {}))
        for kind in types:
            if kind is not VirtualTensor and is_wrapper(kind):
                return NotImplemented  # nested and distributed tensors call operators on the tensors that they hold
        with functions_off():  # calls on tensors in here are not the program's
            return run(func, args, kwargs or {})


#: The rules of PyTorch's own operators, for tensors that are used after their prediction.
_BUILT_IN: Final = SyncRules()


def _rules() -> SyncRules:
    """The rules of the active prediction."""
    recorder = Syncs.active
    return _BUILT_IN if recorder is None or recorder.rules is None else recorder.rules


class _Place(Enum):
    """Where an operator runs."""

    HOST = auto()
    #: A composite operator, which arrives whole in inference mode. The operators that it consists of run one by one.
    PARTS = auto()
    DEVICE = auto()


class _Call:
    """One call of an operator, with arguments on any devices.

    `tensors` are the tensors among the arguments, and `virtual` are the tensors on the virtual device.
    """

    __slots__ = ("args", "kwargs", "overload", "tensors", "virtual")

    def __init__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.overload = overload_of(func)
        self.args = args
        self.kwargs = kwargs
        self.tensors = tensors_of(args)
        if kwargs:
            self.tensors += tensors_of(kwargs.values())
        self.virtual = [tensor for tensor in self.tensors if isinstance(tensor, VirtualTensor)]

    def resolve(self) -> None:
        """Copy the conjugate and negative views among the arguments, as PyTorch's C++ does for most operators.

        Inside a composite operator that arrived whole C++ leaves that out.
        """
        if any(tensor._inner.is_conj() or tensor._inner.is_neg() for tensor in self.virtual):
            self.args = map_tensors(_resolved, list(self.args))
            self.kwargs = {name: map_tensors(_resolved, value) for name, value in self.kwargs.items()}
            self.tensors = tensors_of((*self.args, *self.kwargs.values()))
            self.virtual = [tensor for tensor in self.tensors if isinstance(tensor, VirtualTensor)]


def _resolved(value: Any) -> Any:
    is_view = isinstance(value, VirtualTensor) and (value._inner.is_conj() or value._inner.is_neg())
    return run(_CLONE, (value,), {}) if is_view else value


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one operator: find its place, judge it by the rules, compute its results, wrap them.

    Raises:
        RuntimeError: CUDA would raise it, since tensors of host and GPU are mixed.
    """
    call = _Call(func, args, kwargs)
    place = _place(call)
    if place is _Place.HOST:
        return _run_on_host(call.overload, call.args, kwargs)
    if place is _Place.PARTS:
        return _run_parts(func, args, kwargs)
    failed = None
    if (code := _own_code(call.overload)) is not None:
        try:
            return custom.run(code, _modes(), args, kwargs)
        except Exception as error:  # it may ask for a real GPU
            failed = error
    if _inside.composite and not call.overload.is_view and call.overload.packet not in _TAKE_CONJUGATES:
        call.resolve()
        args, kwargs = call.args, call.kwargs
    node, recorder = current_node(), Syncs.active
    if node is not None and call.overload.packet in _IN_PLACE and (in_place := _in_place(call.overload, node)):
        run(in_place, args, kwargs)
        return VirtualTensor(args[0]._inner, args[0].gpu, is_view=True)
    if recorder is not None:
        _judge(recorder, call.overload, (call.args, kwargs), call.tensors, node)
    try:
        result, gpu = _compute(call)
        wrapped = _wrap_results(call, result, gpu)
    except Exception:
        if failed is not None:
            raise failed from None
        raise
    if recorder is None or call.overload.is_view:
        return wrapped
    if recorder.is_capturing:
        again = partial(_run_again, func, _kept(list(args)), _kept(dict(kwargs)), tensors_of((wrapped,)))
        recorder.captures_operator(again, node)
    elif not (call.virtual[0].gpu if gpu is None else gpu):
        recorder.ran(call.overload, (call.args, kwargs), call.virtual, wrapped, node)
    return wrapped


def _run_again(func: Any, args: Any, kwargs: Any, results: Sequence[Tensor]) -> None:
    """Run an operator of a CUDA graph at its replay, and write its results into those of the capture."""
    for before, now in zip(results, tensors_of((func(*args, **kwargs),)), strict=False):
        if now is not before and is_virtual(now) and is_virtual(before):
            uncomputed.write_over(before._inner, now._inner)  # type: ignore[attr-defined]


def _kept(value: Any) -> Any:
    """An argument as a CUDA graph keeps it: a tensor without values need not keep its memory."""
    if isinstance(value, dict):
        return {name: _kept(item) for name, item in value.items()}
    if isinstance(value, _NESTED):
        return type(value)([_kept(item) for item in value])
    if not is_virtual(value) or not value._inner.is_meta:
        return value
    inner = value._inner
    like = torch.empty_strided(inner.size(), inner.stride(), dtype=inner.dtype, device=inner.device)
    return VirtualTensor(like, value.gpu, is_view=True)


def _in_place(overload: Overload, node: Any) -> Any:
    """The in-place form of an operator, if the running backward formula uses that one on CUDA; otherwise None."""
    if not node.name().startswith(_IN_PLACE[overload.packet]):
        return None
    return aten(f"{overload.packet}_.{overload_name(overload.func)}")


VirtualTensor._run = staticmethod(run)


def _place(call: _Call) -> _Place:
    """Where an operator runs. Single values that PyTorch would first copy to the host are copied.

    Raises:
        RuntimeError: CUDA does not take these tensors together.
    """
    overload, args = call.overload, call.args
    if not call.virtual and not (overload.takes_device and _names_virtual(args, call.kwargs)):
        return _Place.HOST
    if overload.is_composite:
        return _Place.PARTS
    if overload.namespace != "aten":
        return _Place.DEVICE
    if overload.packet == _PACK and is_virtual(args[1]):
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got one on {args[1].device}")
    if 0 < len(call.virtual) < len(call.tensors):
        if overload.packet in _ASSIGN and not is_virtual(args[0]):
            call.args = _copied_for_assignment(args)
            if not any(map(is_virtual, tensors_of(call.args))):
                return _Place.HOST
        _refuse_host(overload, call.args, call.tensors)
    return _Place.DEVICE


def _run_parts(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run a composite operator by PyTorch's own C++ code, as on a GPU, so that its operators arrive one by one.

    If PyTorch does not let its C++ code be called, `func.decompose` is used. It prefers decompositions in Python, which
    may consist of other operators.
    """
    with VirtualDevice(), _inside_composite():  # catches factories inside, too
        if (whole := WHOLE.get(func)) is not None:
            return whole(*args, **kwargs)
        by_key = _RUNS_BY_KEY and _COMPOSITE is not None
        return func._op_dk(_COMPOSITE, *args, **kwargs) if by_key else func.decompose(*args, **kwargs)


def _modes() -> Callable[[], Any]:
    """The function that makes the modes a thread must enter, for operators that are written in Python."""
    recorder = Syncs.active
    return VirtualDevice if recorder is None or recorder.modes is None else recorder.modes


def _own_code(overload: Overload) -> Callable[..., Any] | None:
    """The Python code of a custom operator that has no rule; None for any other operator."""
    if overload.namespace in _PYTORCH_NAMESPACES or _rules().rows_of(overload) is not None:
        return None
    return custom.python_code(overload)


def _copied_for_assignment(args: Sequence[Any]) -> list[Any]:
    """The arguments with their single values and lists of indices copied to the host."""
    return [
        [_on_host(index) for index in value]
        if isinstance(value, _NESTED)
        else _on_host(value)
        if isinstance(value, Tensor) and value.dim() == 0
        else value
        for value in args
    ]


def _on_host(value: Any) -> Any:
    return _TO_COPY(value, device=torch.device("cpu")) if is_virtual(value) else value


def _names_virtual(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    # In inference mode `aten::to` arrives whole, and may name its device by position.
    target = kwargs.get("device") or next((value for value in args if isinstance(value, torch.device)), None)
    return target is not None and torch.device(target).type in _VIRTUAL


def _refuse_host(overload: Overload, args: Sequence[Any], tensors: Sequence[Tensor]) -> None:
    """Raise CUDA's error if host and GPU tensors are mixed; indices, and mostly single values, may be on the host."""
    if overload.packet in _TAKE_FROM_HOST:
        return
    indices = set(map(id, args[1])) if overload.is_index else set()
    if overload.packet in _FACTORS_ON_HOST:
        args = args[: _FACTORS_ON_HOST[overload.packet]]
    for together in _by_place(args) if overload.packet.startswith("_foreach_") else (tensors,):
        numbers_pass = overload.packet not in _TAKE_NO_NUMBER
        on_host = any(
            not is_virtual(tensor) and id(tensor) not in indices and not (numbers_pass and tensor.dim() == 0)
            for tensor in together
        )
        if on_host and any(map(is_virtual, together)):
            message = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
            raise RuntimeError(f"{message} ({overload.func.name()})")


def _by_place(args: Sequence[Any]) -> list[list[Tensor]]:
    """The tensors at each index of an operator's lists, together with the tensors outside of lists."""
    lists = [value for value in args if isinstance(value, _NESTED)]
    return [[tensor for tensor in (*place, *args) if isinstance(tensor, Tensor)] for place in zip(*lists, strict=False)]


def _run_on_host(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    func = overload.func
    if overload.name == "aten::is_pinned":  # as DistributedDataParallel asks
        return args[0] in PINNED
    if kwargs.get("pin_memory"):
        return PINNED.add(func(*args, **{**kwargs, "pin_memory": False}))
    if uncomputed.skips_initialising(overload, args):
        return args[0]
    if UNFINISHED and Syncs.active is not None and not overload.is_view:
        read = args[1:] if overload.packet in _OVERWRITE else args
        Syncs.active.reads(overload.name, tensors_of((*read, *kwargs.values())))
    result = func(*args, **kwargs)
    if Syncs.active is not None and Syncs.active.region_of(current_node()) is not None:
        compiled_syncs.runs_on_host(overload, args, result)
    return result


def _judge(recorder: Syncs, overload: Overload, call: tuple[Any, Any], tensors: Sequence[Tensor], node: object) -> None:
    args, kwargs = call
    is_sent = overload.copied is not None and not is_virtual(args[overload.copied])
    # A single value may be sent to the device anywhere in a step, so it says nothing about the part that runs.
    prepares = overload.is_view or overload.is_mutable or is_sent
    recorder.begins(tensors, node, from_host=is_sent and args[overload.copied].dim() > 0, prepares=prepares)
    name = overload.name
    if not overload.is_view:
        recorder.operator()
    rules = _rules().rows_of(overload)
    region = recorder.region_of(node) if rules is not None else None
    if rules is not None:
        bound = Call(overload.bind(args, kwargs))
        for rule in rules:
            count = rule.syncs(bound)
            if count and region is not None and region.fuses and compiled_syncs.takes_away(overload, rule.kind, args):
                continue
            if count is None:
                recorder.cannot_judge(name, rule.reason)
            elif count:
                is_copy = rule.kind == "h2d_copy" and overload.copied is not None
                is_pinned = args[overload.copied] in PINNED if is_copy else None
                recorder.sync(rule.kind, name, rule.reason, count, pinned=is_pinned)
    elif overload.namespace in collectives.NAMESPACES:
        collectives.judge(name, overload.bind(args, kwargs), recorder)
    elif overload.namespace not in _PYTORCH_NAMESPACES:
        recorder.cannot_judge(name, "a custom operator: what its code does on CUDA is not known; add a rule for it")
    elif overload.data_dependent:
        recorder.cannot_judge(name, "its result depends on the data, and no rule says how CUDA finds its size")
    sparse = [layout for tensor in tensors if (layout := tensor.layout) is not torch.strided]
    of_judged = set(sparse) == {torch.sparse_coo} or overload.packet == "_to_dense"
    if sparse and not (of_judged and overload.packet in SPARSE_JUDGED):
        recorder.cannot_judge(name, "few operators on sparse tensors are covered, and this one is not")


def _compute(call: _Call) -> tuple[Any, int | None]:
    """The results on the CPU, and the number of the virtual GPU that they are on; None if they go to the host."""
    overload, args, kwargs = call.overload, call.args, call.kwargs
    inner_args = _insides(args)
    inner_kwargs = dict(zip(kwargs, _insides(tuple(kwargs.values())), strict=True)) if kwargs else {}
    gpu: int | None
    if (target := kwargs.get("device")) is not None:
        gpu = backend.index_of(torch.device(target)) if torch.device(target).type in _VIRTUAL else None
        inner_kwargs["device"] = torch.device("cpu")
    else:
        gpu = call.virtual[0].gpu if call.virtual else backend.device_index()
    if "pin_memory" in inner_kwargs:
        inner_kwargs["pin_memory"] = False
    if overload.copied == _MOVED:
        return _moved(call, inner_args, inner_kwargs, gpu), gpu
    if overload.copied == _SOURCE and not is_virtual(args[0]):
        return _copied_to_host(call, inner_args), gpu
    function = _substitutes.get(id(overload.func), overload.func)
    return uncomputed.run(overload, function, inner_args, inner_kwargs, _insides(call.tensors)), gpu


def _moved(call: _Call, inner_args: list[Any], inner_kwargs: dict[str, Any], gpu: int | None) -> Any:
    """The result of `_to_copy`: a copy to a GPU, or to the host if `gpu` is None."""
    overload = call.overload
    inner_kwargs.pop("layout", None)  # C++ takes a compressed sparse tensor for a strided one, and names that
    if is_virtual(call.args[0]) is not (gpu is not None):
        # A copy to or from the device is always a copy, although both inner tensors are on the CPU.
        inner_kwargs["non_blocking"] = False
    if gpu is not None:
        return uncomputed.run(overload, overload.func, inner_args, inner_kwargs, _insides(call.tensors))
    result = uncomputed.to_host(overload, inner_args[0], inner_kwargs.get("dtype"))
    if not inner_args[0].is_meta:
        result = overload.func(*inner_args, **inner_kwargs)
    if call.kwargs.get("non_blocking"):
        UNFINISHED.add(PINNED.add(result))
    return result


def _copied_to_host(call: _Call, inner_args: list[Any]) -> Any:
    """The result of `copy_` from the device into a tensor of the host."""
    result = inner_args[0].copy_(uncomputed.to_host(call.overload, inner_args[_SOURCE]))
    if call.overload.bind(call.args, call.kwargs)["non_blocking"] and result in PINNED:
        UNFINISHED.add(result)
    return result


def _insides(values: Sequence[Any]) -> list[Any]:
    """The values with the CPU tensor in place of each virtual one, also within lists and tuples."""
    return [
        value._inner
        if isinstance(value, VirtualTensor)
        else type(value)(_insides(value))
        if isinstance(value, _NESTED)
        else value
        for value in values
    ]


def _wrap_results(call: _Call, result: Any, gpu: int | None) -> Any:
    """Return in-place and `out=` arguments themselves, and wrap new results unless they are on the host."""
    overload, args, kwargs, virtual = call.overload, call.args, call.kwargs, call.virtual
    returns = overload.given_back
    if not returns:
        _refresh_written(overload, args, kwargs)
        return result
    # A view of a tensor that was made outside of inference mode is a normal tensor, even if it is taken inside.
    normal = overload.is_view and torch.is_inference_mode_enabled() and not any(t.is_inference() for t in virtual)
    if not overload.written and len(returns) == 1 and gpu is not None and isinstance(result, Tensor):
        if not normal:
            return VirtualTensor(result, gpu, is_view=overload.is_view)
        view = _wrap(result, gpu, normal=True)
        # Also in inference mode a view of a weight requires a gradient, and `matmul` decides by that. Outside of a
        # composite operator PyTorch sets it itself.
        if _inside.composite and view.is_floating_point() and any(tensor.requires_grad for tensor in virtual):
            view.requires_grad_()
        return view
    _refresh_written(overload, args, kwargs)
    results = result if isinstance(result, tuple) and len(returns) > 1 else (result,)
    positions = {name: position for position, name in overload.written}
    of_host = _HOST_RESULT.get(overload.name)
    wrapped: list[Any] = []
    for number, (name, value) in enumerate(zip(returns, results, strict=False)):
        if name is not None:
            position = positions[name]
            wrapped.append(args[position] if position < len(args) else kwargs.get(name))
        else:
            wrapped.append(value if gpu is None or number == of_host else _wrap(value, gpu, normal=normal))
    if overload.namespace == "c10d":
        wrapped[-1] = collectives.with_results(wrapped[-1], wrapped[:-1])
    return tuple(wrapped) if len(returns) > 1 else wrapped[0]


def _refresh_written(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Update the shapes of the tensors that an operator has written to, if it may have changed them."""
    if not overload.reshapes:
        return
    for position, name in overload.written:
        for tensor in tensors_of((args[position] if position < len(args) else kwargs.get(name),)):
            if isinstance(tensor, VirtualTensor):
                refresh(tensor)


def _wrap(value: Any, gpu: int, *, normal: bool = False) -> Any:
    if normal:
        with torch.inference_mode(mode=False):
            return _wrap(value, gpu)
    if isinstance(value, Tensor):
        return VirtualTensor(value, gpu)
    return map_tensors(lambda leaf: VirtualTensor(leaf, gpu) if isinstance(leaf, Tensor) else leaf, value)
