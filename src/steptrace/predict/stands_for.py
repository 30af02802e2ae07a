"""Classes that a program takes for its own, or for `torch.Tensor`, and the attributes that it does not see on them."""

import copyreg
import weakref
from collections.abc import Iterator, MutableMapping
from typing import Any, Final

from torch import Tensor


class StandsFor(type(Tensor)):  # type: ignore[misc]
    """A metaclass whose classes equal those that they stand for: `torch.Tensor`, or a subclass of the program's.

    With it `type(x) == torch.Tensor`, `type(x) in (torch.Tensor, list)` and look-ups by type work as with CUDA.
    """

    #: The class as the program knows it.
    stands_for: Any

    def __eq__(cls, other: object) -> bool:
        return other is cls or other is cls.stands_for

    def __hash__(cls) -> int:
        return hash(cls.stands_for)


def _itself(kind: Any) -> Any:
    return kind


def pickle_as_known(metaclass: type) -> None:
    """Let a program pickle the classes of a metaclass: it finds the classes that it knows."""
    copyreg.pickle(metaclass, lambda kind: (_itself, (kind.stands_for,)))


pickle_as_known(StandsFor)


#: Not known to mypy, which sees that a mapping's methods and those of a dictionary differ.
_Dictionary: Any = dict


class AttributesOfProgram(MutableMapping[str, Any], _Dictionary):  # type: ignore[misc]
    """The attributes of an object without those that are ours. What is written to it, the object gets.

    It is a dictionary, as `__dict__` of any object. The methods are those of a mapping, which comes first: the
    dictionary itself stays empty, and Python asks these methods of a class that has its own way to go through it.
    """

    def __init__(self, attributes: dict[str, Any], ours: tuple[str, ...]) -> None:
        self._attributes = attributes
        self._ours = ours

    def __getitem__(self, name: str) -> Any:
        if name in self._ours:
            raise KeyError(name)
        return self._attributes[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._attributes[name] = value

    def __delitem__(self, name: str) -> None:
        if name in self._ours:
            raise KeyError(name)
        del self._attributes[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._attributes if name not in self._ours)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def copy(self) -> dict[str, Any]:
        """A dictionary of the attributes."""
        return dict(self)

    def __or__(self, other: Any) -> Any:
        return dict(self) | other

    def __ror__(self, other: Any) -> Any:
        return other | dict(self)

    def __ior__(self, other: Any) -> Any:
        self.update(other)
        return self

    def __repr__(self) -> str:
        return repr(dict(self))

    def __reduce__(self) -> Any:
        return dict, (dict(self),)


class HiddenAttributes:
    """The attributes of tensors of the device that are ours, for as long as a tensor lives.

    They are kept apart from the tensor's own attributes, which a program's classes may copy or replace.
    """

    def __init__(self) -> None:
        self._kept: dict[int, tuple[weakref.ref[Any], dict[str, Any]]] = {}

    def of(self, tensor: Any) -> dict[str, Any]:
        """The hidden attributes of a tensor."""
        key = id(tensor)
        if key not in self._kept:
            self._kept[key] = weakref.ref(tensor, lambda _: self._kept.pop(key, None)), {}
        return self._kept[key][1]

    def take(self, tensor: Any) -> dict[str, Any]:
        """The hidden attributes of a tensor, which has none from now on, and no weak reference to it."""
        return self._kept.pop(id(tensor), (None, {}))[1]


hidden: Final = HiddenAttributes()


def hidden_attribute(name: str) -> property:
    """An attribute of a class that is kept in `hidden`."""

    def read(self: Any) -> Any:
        try:
            return hidden.of(self)[name]
        except KeyError:
            raise AttributeError(name) from None

    return property(read, lambda self, value: hidden.of(self).__setitem__(name, value))
