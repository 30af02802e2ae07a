"""One operator call on the virtual device: place it, judge it by the rules, compute it on the CPU, wrap the results."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import Enum, auto
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict import backend, collectives, compiled, custom, uncomputed
from steptrace.predict.memory import PINNED, UNFINISHED
from steptrace.predict.operators import Overload, overload_of, tensors_of
from steptrace.predict.pytorch import DispatchMode, aten, current_node, dispatch_key, functions_off
from steptrace.predict.recorder import Syncs
from steptrace.predict.rule import Call
from steptrace.predict.rules import SPARSE_JUDGED, RuleTable
from steptrace.predict.substitutes import SUBSTITUTES
from steptrace.predict.tensor import VirtualTensor, is_virtual, is_wrapper, map_tensors, refresh
from steptrace.predict.threads import stop_if_ended
from steptrace.torch_names import has

_PYTORCHS_OWN = {"aten", "prims", "prim", "profiler"}
#: Operators that copy from the host, ask for shapes, or take some tensor with dimensions from there, such as lengths.
_TAKE_FROM_HOST = {
    "_to_copy", "copy_", "_foreach_copy", "_foreach_copy_", "as_strided_scatter", "diagonal_scatter", "select_scatter",
    "slice_scatter", "is_same_size", "is_set_to", "resize_as_", "_use_cudnn_ctc_loss",
    "_pack_padded_sequence", "_pad_packed_sequence", "_ctc_loss", "_cudnn_ctc_loss", "_cudnn_rnn",
    "_cudnn_rnn_backward", "tensor_split", "_segment_reduce_backward", "bernoulli", "bernoulli_",
    "_unsafe_masked_index", "_unsafe_masked_index_put_accumulate", "rrelu_with_noise_backward",
}  # fmt: skip
#: Operators of which a tensor of the host gets a single value of a GPU, which PyTorch copies there as it does indices.
_ASSIGN = {
    "fill", "fill_", "index_fill", "index_fill_", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put",
}  # fmt: skip

#: Runs an operator that is made of others as PyTorch's C++ does.
_COMPOSITE = dispatch_key("CompositeImplicitAutograd")
_RUNS_BY_KEY = has("torch.ops.aten.detach.default._op_dk")
#: Operators that write to their first argument without reading it.
_OVERWRITE = {"copy_", "fill_", "zero_"}

#: Takes lengths from the host alone.
_PACK = "_pack_padded_sequence"
_TO_COPY = aten("_to_copy")
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


#: The positions of what `_to_copy` and `copy_` copy.
_MOVED, _SOURCE = 0, 1
#: By the identity of an operator, which is not to be hashed at every call.
_substitutes = {id(operator): function for operator, function in SUBSTITUTES.items()}
#: Types of devices that name the virtual one; C++ may have got "cuda" from PyTorch's own Python.
_VIRTUAL = (backend.DEVICE_TYPE, "cuda")
#: Operators of which one result, by position, lies on the CPU even if the others do not.
_HOST_RESULT = {"aten::_pack_padded_sequence": 1, "aten::_pad_packed_sequence": 1}


class VirtualDevice(DispatchMode):  # type: ignore[misc]
    """Catches what has no virtual tensor among its arguments: factories, copies to the device, pinning."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled meanwhile, and to say so at each operator takes time

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        stop_if_ended()
        if Syncs.active is None:  # the prediction is over, and the thread goes on
            return func(*args, **(kwargs or {}))
        for kind in types:
            if kind is not VirtualTensor and is_wrapper(kind):
                return NotImplemented  # nested and distributed tensors work on those they hold, and come by with them
        with functions_off():  # what is asked of tensors meanwhile is not the program's
            return run(func, args, kwargs or {})


#: The rows of PyTorch's operators alone, for tensors that are used after their prediction.
_BUILT_IN: Final = RuleTable()


def _rules() -> RuleTable:
    """The rows by which the active prediction judges."""
    recorder = Syncs.active
    return _BUILT_IN if recorder is None or recorder.rules is None else recorder.rules


class _Place(Enum):
    """Where an operator runs."""

    HOST = auto()
    #: In inference mode composite operators arrive whole: what they are made of comes by one by one.
    PARTS = auto()
    DEVICE = auto()


class _Call:
    """One call of an operator, whatever mixture of devices it is called with.

    `tensors` are those among the arguments, `virtual` those of them that lie on the device.
    """

    __slots__ = ("args", "kwargs", "overload", "tensors", "virtual")

    def __init__(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.overload, self.args, self.kwargs = overload_of(func), args, kwargs
        self.tensors = tensors_of(args)
        if kwargs:
            self.tensors += tensors_of(kwargs.values())
        self.virtual = [tensor for tensor in self.tensors if isinstance(tensor, VirtualTensor)]


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one operator: find its place, judge it by the rules, compute its results, wrap them.

    Raises:
        RuntimeError: CUDA would raise it, for tensors of the host where it takes none.
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
    node, recorder = current_node(), Syncs.active
    if recorder is not None:
        _judge(recorder, call.overload, (call.args, kwargs), call.tensors, node)
    try:
        result, gpu = _compute(call)
        wrapped = _wrap_results(call, result, gpu)
    except Exception:
        if failed is not None:
            raise failed from None
        raise
    if recorder is not None and not call.overload.is_view and not (call.virtual[0].gpu if gpu is None else gpu):
        recorder.ran(call.overload, (call.args, kwargs), call.virtual, wrapped, node)
    return wrapped


VirtualTensor._run = staticmethod(run)


def _place(call: _Call) -> _Place:
    """Where an operator runs. Single values that PyTorch copies to the host to assign them there are copied.

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
    """Take a composite operator apart as PyTorch's own C++ does on a GPU.

    `func.decompose` prefers decompositions in Python that are made of other operators; it stands in where PyTorch does
    not let its C++ be called.
    """
    with VirtualDevice(), _inside_composite():  # catches factories inside, too
        by_key = _RUNS_BY_KEY and _COMPOSITE is not None
        return func._op_dk(_COMPOSITE, *args, **kwargs) if by_key else func.decompose(*args, **kwargs)


def _modes() -> Callable[[], Any]:
    """What a thread enters to find the device, for operators that are written in Python."""
    recorder = Syncs.active
    return VirtualDevice if recorder is None or recorder.modes is None else recorder.modes


def _own_code(overload: Overload) -> Callable[..., Any] | None:
    """The Python code of an operator that is none of PyTorch's and has no rule."""
    if overload.namespace in _PYTORCHS_OWN or _rules().rows_of(overload) is not None:
        return None
    return custom.python_code(overload)


def _copied_for_assignment(args: Sequence[Any]) -> list[Any]:
    """The same arguments with single values and lists of indices on the host."""
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
    """Raise as CUDA does for a tensor of the host among those of a GPU; a single value may lie there, and indices."""
    if overload.packet in _TAKE_FROM_HOST:
        return
    indices = set(map(id, args[1])) if overload.is_index else set()
    for together in _by_place(args) if overload.packet.startswith("_foreach_") else (tensors,):
        on_host = any(not is_virtual(one) and one.dim() > 0 and id(one) not in indices for one in together)
        if on_host and any(map(is_virtual, together)):
            message = "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!"
            raise RuntimeError(f"{message} ({overload.func.name()})")


def _by_place(args: Sequence[Any]) -> list[list[Tensor]]:
    """The tensors of each place in an operator's lists, with those that are for all places: lists may hold both."""
    lists = [value for value in args if isinstance(value, _NESTED)]
    return [[one for one in (*place, *args) if isinstance(one, Tensor)] for place in zip(*lists, strict=False)]


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
        compiled.runs_on_host(overload, args, result)
    return result


def _judge(recorder: Syncs, overload: Overload, call: tuple[Any, Any], tensors: Sequence[Tensor], node: object) -> None:
    args, kwargs = call
    prepares = overload.is_view or overload.is_mutable
    recorder.begins(tensors, node, from_host=_comes_from_host(overload, args), prepares=prepares)
    name = overload.name
    if not overload.is_view:
        recorder.operator()
    rules = _rules().rows_of(overload)
    region = recorder.region_of(node) if rules is not None else None
    if rules is not None:
        bound = Call(overload.bind(args, kwargs))
        for rule in rules:
            count = rule.syncs(bound)
            if count and region is not None and region.fuses and compiled.takes_away(overload, rule.kind, args):
                continue
            if count is None:
                recorder.cannot_judge(name, rule.reason)
            elif count:
                is_copy = rule.kind == "h2d_copy" and overload.copied is not None
                is_pinned = args[overload.copied] in PINNED if is_copy else None
                recorder.sync(rule.kind, name, rule.reason, count, pinned=is_pinned)
    elif overload.namespace in collectives.NAMESPACES:
        collectives.judge(name, overload.bind(args, kwargs), recorder)
    elif overload.namespace not in _PYTORCHS_OWN:
        recorder.cannot_judge(name, "a custom operator: what its code does on CUDA is not known; add a rule for it")
    elif overload.data_dependent:
        recorder.cannot_judge(name, "its result depends on the data, and no rule says how CUDA finds its size")
    sparse = [layout for tensor in tensors if (layout := tensor.layout) is not torch.strided]
    of_judged = set(sparse) == {torch.sparse_coo} or overload.packet == "_to_dense"
    if sparse and not (of_judged and overload.packet in SPARSE_JUDGED):
        recorder.cannot_judge(name, "few operators on sparse tensors are covered, and this one is not")


def _comes_from_host(overload: Overload, args: Sequence[Any]) -> bool:
    """Whether an operator copies a tensor from the host; a single value is no batch."""
    if overload.copied is None:
        return False
    source = args[overload.copied]
    return not is_virtual(source) and source.dim() > 0


def _compute(call: _Call) -> tuple[Any, int | None]:
    """The results on the CPU, and the GPU on which they lie; None where the call takes them to the host."""
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
    """The result of `_to_copy`: a copy to a GPU, or to the host where `gpu` is None."""
    overload = call.overload
    inner_kwargs.pop("layout", None)  # C++ takes a compressed sparse tensor for a strided one, and names that
    if is_virtual(call.args[0]) is not (gpu is not None):
        # Leaves or reaches the device: a copy, even where CPU and CPU would share memory.
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
    """The same values with the CPU tensors behind the virtual ones, in lists and tuples, too."""
    return [
        value._inner
        if isinstance(value, VirtualTensor)
        else type(value)(_insides(value))
        if isinstance(value, _NESTED)
        else value
        for value in values
    ]


def _wrap_results(call: _Call, result: Any, gpu: int | None) -> Any:
    """Give in-place and `out=` arguments back as themselves, and wrap everything new unless it lies on the host."""
    overload, args, kwargs, virtual = call.overload, call.args, call.kwargs, call.virtual
    returns = overload.given_back
    if not returns:
        _refresh_written(overload, args, kwargs)
        return result
    # In inference mode, too, a view of a tensor from outside of it is none of an inference tensor.
    normal = overload.is_view and torch.is_inference_mode_enabled() and not any(t.is_inference() for t in virtual)
    if not overload.written and len(returns) == 1 and gpu is not None and isinstance(result, Tensor):
        if not normal:
            return VirtualTensor(result, gpu, is_view=overload.is_view)
        view = _wrap(result, gpu, normal=True)
        # A view of a weight says in inference mode, too, that it requires a gradient, and `matmul` decides by it.
        # Outside of a composite operator PyTorch sees to that itself.
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
    """Bring the shapes up to date of what an operator has written to, if it may have changed them."""
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
