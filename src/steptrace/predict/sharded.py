"""Modules whose parameters FSDP shards: its hooks gather them before each forward pass, and free them after it."""

import sys
from typing import Any

from torch import nn

#: The modules of both forms of FSDP; a program that uses one has imported it.
_FSDP2 = "torch.distributed.fsdp._fully_shard._fully_shard"
_FSDP1 = "torch.distributed.fsdp.fully_sharded_data_parallel"


def sharded_units(module: nn.Module) -> tuple[nn.Module, ...]:
    """The modules whose forward pass FSDP's hooks surround, without those that hold others.

    Dynamo ends graphs at these hooks, so each of these modules is compiled by itself. A module that holds others is
    left out, and so is its own work beside the calls.
    """
    kinds = [_kind(_FSDP2, "FSDPModule"), _kind(_FSDP1, "FullyShardedDataParallel")]
    if kinds == [None, None]:
        return ()
    fsdp = tuple(kind for kind in kinds if kind is not None)
    sharded = [inner for inner in module.modules() if isinstance(inner, fsdp)]
    leaves = [
        inner for inner in sharded if not any(isinstance(part, fsdp) for part in inner.modules() if part is not inner)
    ]
    return tuple(getattr(leaf, "_fsdp_wrapped_module", leaf) for leaf in leaves)


def _kind(module: str, name: str) -> Any:
    """A class of a module that may not be imported; None then."""
    return getattr(sys.modules.get(module), name, None)
