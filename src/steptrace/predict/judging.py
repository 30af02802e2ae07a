"""Judges one operator call by the rules: where the host waits, and what cannot be said."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from steptrace.predict import collectives, compiled_syncs
from steptrace.predict.memory import PINNED
from steptrace.predict.operators import Overload
from steptrace.predict.sync_rule import Call
from steptrace.predict.sync_rules import COMPRESSED_JUDGED, NESTED_JUDGED, SPARSE_JUDGED, SyncRules
from steptrace.predict.syncs import Syncs
from steptrace.predict.tensor import is_virtual

#: The namespaces of PyTorch's own operators.
PYTORCH_NAMESPACES: Final = frozenset({"aten", "prims", "prim", "profiler"})
#: The rules of PyTorch's own operators, for tensors that are used after their prediction.
_BUILT_IN: Final = SyncRules()


def active_rules() -> SyncRules:
    """The rules of the active prediction."""
    recorder = Syncs.active
    return _BUILT_IN if recorder is None or recorder.rules is None else recorder.rules


def judge(recorder: Syncs, overload: Overload, call: tuple[Any, Any], tensors: Sequence[Tensor], node: object) -> None:
    """Record the syncs of an operator that is about to run, or that they are not known.

    Args:
        recorder: gets the syncs.
        overload: the operator.
        call: its arguments, by position and by name.
        tensors: the tensors among them.
        node: the running autograd node, or None.
    """
    args, kwargs = call
    is_sent = overload.copied is not None and not is_virtual(args[overload.copied])
    # A single value may be sent to the device anywhere in a step, so it says nothing about the part that runs.
    prepares = overload.is_view or overload.is_mutable or is_sent
    recorder.begins(tensors, node, from_host=is_sent and args[overload.copied].dim() > 0, prepares=prepares)
    name = overload.name
    if not overload.is_view:
        recorder.operator()
    rules = active_rules().rows_of(overload)
    region = recorder.thread.region_of(node) if rules is not None else None
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
    elif overload.namespace not in PYTORCH_NAMESPACES:
        recorder.cannot_judge(name, "a custom operator: what its code does on CUDA is not known; add a rule for it")
    elif overload.data_dependent:
        recorder.cannot_judge(name, "its result depends on the data, and no rule says how CUDA finds its size")
    sparse = {layout for tensor in tensors if (layout := tensor.layout) is not torch.strided}
    if sparse and overload.packet not in (SPARSE_JUDGED if sparse == {torch.sparse_coo} else COMPRESSED_JUDGED):
        recorder.cannot_judge(name, "few operators on sparse tensors are covered, and this one is not")
    if overload.packet not in NESTED_JUDGED and any(tensor.is_nested for tensor in tensors):
        recorder.cannot_judge(name, "few operators on nested tensors are covered, and this one is not")
