"""One operator call on the virtual device: judge it by the rules, run it on the CPU, wrap what comes out."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from steptrace.predict import backend, collectives, compiled, custom, uncomputed
from steptrace.predict.memory import PINNED, UNFINISHED
from steptrace.predict.operators import Overload, overload_of, tensors_of
from steptrace.predict.pytorch import DispatchMode, aten, current_node, dispatch_key, functions_off, overload_name
from steptrace.predict.recorder import Syncs
from steptrace.predict.rule import Call, Rule
from steptrace.predict.rules import RULES, SPARSE_JUDGED
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

_PACK = aten("_pack_padded_sequence")
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


#: The position of what `copy_` copies.
_SOURCE = 1
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


def _by_op(rules: Sequence[Rule]) -> dict[str, list[Rule]]:
    return {op: [rule for rule in rules if rule.op == op] for op in dict.fromkeys(rule.op for rule in rules)}


_TABLE = _by_op(RULES)
#: What a thread enters to find the device, for operators that are written in Python.
_modes: Callable[[], Any] = VirtualDevice
#: The rows by operator, replaced for the time of a prediction by those with the user's own.
_table = _TABLE
#: The rows of each overload that has come by, None where the table has none.
_rows: dict[Overload, list[Rule] | None] = {}


def use_modes(modes: Callable[[], Any]) -> None:
    """From now on enter these modes for operators that are written in Python."""
    global _modes
    _modes = modes


def use_rules(extra: Sequence[Rule]) -> None:
    """From now on judge by the table and by `extra`, of which a row replaces the table's rows of the same name."""
    global _table
    _table = _TABLE | _by_op(extra)
    _rows.clear()


def _rules_of(overload: Overload) -> list[Rule] | None:
    """The rows of an operator, by its overload or else its name; None if the table has none."""
    if overload not in _rows:
        name = overload.packet if overload.namespace == "aten" else overload.name
        _rows[overload] = _table.get(f"{name}.{overload_name(overload.func)}") or _table.get(name)
    return _rows[overload]


def run(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Run one operator, whatever mixture of devices it is called with."""
    overload = overload_of(func)
    tensors = tensors_of(args)
    if kwargs:
        tensors += tensors_of(kwargs.values())
    virtual = [tensor for tensor in tensors if isinstance(tensor, VirtualTensor)]
    if not virtual and not (overload.takes_device and _names_virtual(args, kwargs)):
        return _run_on_host(overload, args, kwargs)
    if overload.is_composite:
        # In inference mode composite operators arrive whole. PyTorch's own C++ takes them apart, as on a GPU, and not
        # `func.decompose`, which prefers decompositions in Python that are made of other operators.
        with VirtualDevice(), _inside_composite():  # catches factories inside, too
            by_key = _RUNS_BY_KEY and _COMPOSITE is not None
            return func._op_dk(_COMPOSITE, *args, **kwargs) if by_key else func.decompose(*args, **kwargs)
    failed = None
    if (code := _own_code(overload)) is not None:
        try:
            return custom.run(code, _modes, args, kwargs)
        except Exception as error:  # it may ask for a real GPU
            failed = error
    if func is _PACK and is_virtual(args[1]):
        raise RuntimeError(f"'lengths' argument should be a 1D CPU int64 tensor, but got one on {args[1].device}")
    if 0 < len(virtual) < len(tensors):
        if overload.packet in _ASSIGN and not is_virtual(args[0]):
            args = _copied_for_assignment(args)
            if not any(map(is_virtual, tensors_of(args))):
                return _run_on_host(overload, args, kwargs)
        _refuse_host(overload, args, tensors)
    node = current_node()
    if Syncs.active is not None:
        _judge(Syncs.active, overload, (args, kwargs), tensors, node)
    try:
        return _run_on_device(overload, args, kwargs, tensors, virtual, node)
    except Exception:
        if failed is not None:
            raise failed from None
        raise


VirtualTensor._run = staticmethod(run)


def _own_code(overload: Overload) -> Callable[..., Any] | None:
    """The Python code of an operator that is none of PyTorch's and has no rule."""
    if overload.namespace in _PYTORCHS_OWN or _rules_of(overload) is not None:
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
    if overload.namespace != "aten" or overload.packet in _TAKE_FROM_HOST:
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
    rules = _rules_of(overload)
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


def _run_on_device(
    overload: Overload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: Sequence[Tensor],
    virtual: Sequence[VirtualTensor],
    node: object,
) -> Any:
    """Run on the tensors inside. Results are virtual unless the call names another device or returns an argument."""
    inner_args = _insides(args)
    inner_kwargs = dict(zip(kwargs, _insides(tuple(kwargs.values())), strict=True)) if kwargs else {}
    gpu: int | None
    if (target := kwargs.get("device")) is not None:
        gpu = backend.index_of(torch.device(target)) if torch.device(target).type in _VIRTUAL else None
        inner_kwargs["device"] = torch.device("cpu")
    else:
        gpu = virtual[0].gpu if virtual else backend.device_index()
    if "pin_memory" in inner_kwargs:
        inner_kwargs["pin_memory"] = False
    if overload.func is _TO_COPY:
        inner_kwargs.pop("layout", None)  # C++ takes a compressed sparse tensor for a strided one, and names that
        if is_virtual(args[0]) is not (gpu is not None):
            # Leaves or reaches the device: a copy, even where CPU and CPU would share memory.
            inner_kwargs["non_blocking"] = False
    if overload.func is _TO_COPY and gpu is None:
        result = uncomputed.to_host(overload, inner_args[0], inner_kwargs.get("dtype"))
        if not inner_args[0].is_meta:
            result = overload.func(*inner_args, **inner_kwargs)
        if kwargs.get("non_blocking"):
            UNFINISHED.add(PINNED.add(result))
    elif overload.copied == _SOURCE and not is_virtual(args[0]):
        result = inner_args[0].copy_(uncomputed.to_host(overload, inner_args[_SOURCE]))
        if overload.bind(args, kwargs)["non_blocking"] and result in PINNED:
            UNFINISHED.add(result)
    else:
        function = _substitutes.get(id(overload.func), overload.func)
        result = uncomputed.run(overload, function, inner_args, inner_kwargs, _insides(tensors))
    wrapped = _wrap_results(overload, args, kwargs, virtual, result, gpu)
    if Syncs.active is not None and not overload.is_view and not (virtual[0].gpu if gpu is None else gpu):
        Syncs.active.ran(overload, (args, kwargs), virtual, wrapped, node)
    return wrapped


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


def _wrap_results(
    overload: Overload,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    virtual: Sequence[VirtualTensor],
    result: Any,
    gpu: int | None,
) -> Any:
    """Give in-place and `out=` arguments back as themselves, and wrap everything new unless it lies on the host."""
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
