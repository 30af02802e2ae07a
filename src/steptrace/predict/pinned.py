"""Which CPU memory counts as pinned: CPU builds of PyTorch cannot pin, and pinning decides whether a copy waits."""

from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

_pinned: dict[int, StorageWeakRef] = {}


def mark(tensor: Tensor) -> Tensor:
    """Count the memory of a CPU tensor, and so of its views, as pinned."""
    reference = StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]
    _pinned[reference.cdata] = reference
    return tensor


def is_marked(tensor: Tensor) -> bool:
    """Whether the memory of a CPU tensor counts as pinned."""
    if not _pinned:
        return False
    reference = _pinned.get(tensor.untyped_storage()._cdata)
    return reference is not None and not reference.expired()  # type: ignore[no-untyped-call]


def forget() -> None:
    """Forget all marks."""
    _pinned.clear()
