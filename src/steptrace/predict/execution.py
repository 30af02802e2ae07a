"""Runs one operator call on the virtual device: judges it by the rules, computes it on the CPU, wraps the results."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict import backend, collectives, compiled_syncs, custom, uncomputed
from steptrace.predict.judging import PYTORCH_NAMESPACES, active_rules, judge
from steptrace.predict.memory import PINNED, UNFINISHED
from steptrace.predict.nondeterministic import alert_if_not_deterministic
from steptrace.predict.not_on_cuda import error_of_cuda, refuse_if_not_on_cuda
from steptrace.predict.operator_call import VIRTUAL_TYPES, OperatorCall, RunsOn, runs_on
from steptrace.predict.operators import Overload, tensors_of
from steptrace.predict.pytorch import DispatchMode, aten, current_node, dispatch_key, functions_off, overload_name
from steptrace.predict.substitutes import SUBSTITUTES, WHOLE
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import VirtualTensor, is_virtual, is_wrapper, map_tensors, refresh
from steptrace.predict.threads import stop_if_ended
from steptrace.torch_names import has

#: The dispatch key under which PyTorch's C++ runs a composite operator.
_COMPOSITE = dispatch_key("CompositeImplicitAutograd")
_RUNS_BY_KEY = has("torch.ops.aten.detach.default._op_dk")
_CLONE = aten("clone")
#: Operators that take conjugate and negative views as they are, see `aten/src/ATen/ConjugateFallback.cpp`.
_TAKE_CONJUGATES: Final = {
    "clone", "copy_", "_to_copy", "_conj_physical", "conj_physical", "conj_physical_", "resolve_conj", "resolve_neg",
    "mm", "bmm", "addmm", "baddbmm", "dot", "vdot", "mv", "empty_like", "detach",
}  # fmt: skip
_NESTED = (list, tuple)
#: Operators that write to their first argument without reading it.
_OVERWRITE: Final = {"copy_", "fill_", "zero_"}


class _Inside(threading.local):
    """Whether this thread is inside a composite operator that arrived whole."""

    composite = False


_inside = _Inside()


@contextmanager
def _inside_composite() -> Iterator[None]:
    before = _inside.composite
    _inside.composite = True
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
#: The node that adds up the gradients of places which a mask has filled with a tensor. It selects them, unless a tensor
#: is of a subclass: then it puts zeros in the other places.
_OF_FILL: Final = "MaskedFillBackward"
_MASKED_SELECT = aten("masked_select")
#: Index of the argument that `_to_copy`, and that `copy_`, copies.
_MOVED: Final = 0
_SOURCE: Final = 1
#: Substitutes by the identity of the operator, since hashing an operator at every call takes time.
_substitutes = {id(operator): function for operator, function in SUBSTITUTES.items()}
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


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one operator: find its place, judge it by the rules, compute its results, wrap them.

    Raises:
        RuntimeError: CUDA would raise it, since tensors of host and GPU are mixed.
    """
    call = OperatorCall(func, args, kwargs)
    place = runs_on(call)
    if place is RunsOn.HOST:
        return _run_on_host(call.overload, call.args, kwargs)
    if place is RunsOn.PARTS:
        return _run_parts(func, args, kwargs)
    failed = None
    if (code := _own_code(call.overload)) is not None:
        try:
            return custom.run(code, _modes(), args, kwargs)
        except Exception as error:  # it may ask for a real GPU
            failed = error
    if _inside.composite and not call.overload.is_view and call.overload.packet not in _TAKE_CONJUGATES:
        call.resolve(lambda view: run(_CLONE, (view,), {}))
        args = call.args
        kwargs = call.kwargs
    refuse_if_not_on_cuda(call.overload, call.tensors)
    alert_if_not_deterministic(call.overload, args, kwargs)
    node = current_node()
    recorder = Syncs.active
    if node is not None and call.overload.packet in _IN_PLACE and (in_place := _in_place(call.overload, node)):
        run(in_place, args, kwargs)
        return VirtualTensor(args[0]._inner, args[0].gpu, is_view=True)
    if node is not None and call.overload.packet == "where" and node.name().startswith(_OF_FILL):
        return run(_MASKED_SELECT, (args[1], args[0]), {})
    if recorder is not None:
        judge(recorder, call.overload, (call.args, kwargs), call.tensors, node)
    try:
        result, gpu = _compute(call)
        wrapped = _wrap_results(call, result, gpu)
    except Exception as error:
        if failed is not None:
            raise failed from None
        if (of_cuda := error_of_cuda(error)) is not error:
            raise of_cuda from None
        raise
    if recorder is None or call.overload.is_view:
        return wrapped
    if recorder.thread.is_capturing:
        again = partial(_run_again, func, _kept(list(args)), _kept(dict(kwargs)), tensors_of((wrapped,)))
        recorder.thread.capture(again, node)
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
    if overload.namespace in PYTORCH_NAMESPACES or active_rules().rows_of(overload) is not None:
        return None
    return custom.python_code(overload)


def _run_on_host(overload: Overload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    func = overload.func
    if overload.name == "aten::is_pinned":  # as DistributedDataParallel asks
        return args[0] in PINNED
    if overload.name == "aten::_efficientzerotensor":  # the tangent of a number, whose products C++ cannot follow
        return torch.zeros(*args, **kwargs)
    if kwargs.get("pin_memory"):
        return PINNED.add(func(*args, **{**kwargs, "pin_memory": False}))
    if uncomputed.skips_initialising(overload, args):
        return args[0]
    if UNFINISHED and Syncs.active is not None and not overload.is_view:
        read = args[1:] if overload.packet in _OVERWRITE else args
        Syncs.active.reads(overload.name, tensors_of((*read, *kwargs.values())))
    result = func(*args, **kwargs)
    if Syncs.active is not None and Syncs.active.thread.region_of(current_node()) is not None:
        compiled_syncs.runs_on_host(overload, args, result)
    return result


def _compute(call: OperatorCall) -> tuple[Any, int | None]:
    """The results on the CPU, and the number of the virtual GPU that they are on; None if they go to the host."""
    overload = call.overload
    args = call.args
    kwargs = call.kwargs
    inner_args = _insides(args)
    inner_kwargs = dict(zip(kwargs, _insides(tuple(kwargs.values())), strict=True)) if kwargs else {}
    gpu: int | None
    if (target := kwargs.get("device")) is not None:
        gpu = backend.index_of(torch.device(target)) if torch.device(target).type in VIRTUAL_TYPES else None
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


def _moved(call: OperatorCall, inner_args: list[Any], inner_kwargs: dict[str, Any], gpu: int | None) -> Any:
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


def _copied_to_host(call: OperatorCall, inner_args: list[Any]) -> Any:
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


def _wrap_results(call: OperatorCall, result: Any, gpu: int | None) -> Any:
    """Return in-place and `out=` arguments themselves, and wrap new results unless they are on the host."""
    overload = call.overload
    args = call.args
    kwargs = call.kwargs
    virtual = call.virtual
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
