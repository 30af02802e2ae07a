"""Recompilations of compiled code: which calls differ in the values that its guards check.

Dynamo says what it guards, and which sizes are dynamic, each time that it follows a call (`DynamoFrame`). The values
are noted in the program itself, and are compared at later calls. A call that fits none of the noted ones is compiled
again.
"""

import gc
import inspect
import math
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from types import CodeType, NoneType
from typing import Any, Final, NamedTuple, cast

from torch import nn

from steptrace import foreign_messages as messages
from steptrace.documents.compilations import Recompiled
from steptrace.documents.compiled import GraphBreak
from steptrace.engine.frames import trace_file_name
from steptrace.predict.dynamic_sizes import Condition, DynamicSizes, Symbol, bound, sympy_false
from steptrace.predict.failed_guards import Failed
from steptrace.predict.guard_values import (
    CONSTANT,
    MISSING,
    SHAPES,
    TYPE,
    Guard,
    Scope,
    TensorValue,
    guards_of,
    is_same,
    scope_of,
    sendable,
    state_of,
)
from steptrace.torch_names import private

pytree: Any = private("torch.utils._pytree")


#: Types whose values are compared by themselves; they have no identity.
_PLAIN: Final = (int, float, str, NoneType)
#: Dynamo is not asked any more about calls with the same guards after so many answers without a recompilation.
#: Chosen freely: each time takes seconds.
_MOST_IN_VAIN: Final = 3
#: Places of the compiled function, and of the object whose method it is, among the arguments of a call.
TARGET: Final = -1
OWNER: Final = -2
#: Dynamo's own function that calls what it does not follow by itself, such as a function wrapped by PyTorch's.
_WRAPPER: Final = "torch/_dynamo/external_utils.py", "inner"
#: A compiled function, and the arguments of its call by position and by name.
Call = tuple[Any, Sequence[Any], Mapping[str, Any]]


def code_of(target: Any) -> object:
    """The code of a function, by which Dynamo counts compilations. Modules of one class share it."""
    function = target.forward if isinstance(target, nn.Module) else target
    function = inspect.unwrap(function)
    return getattr(getattr(function, "__func__", function), "__code__", None) or id(target)


class Reference(NamedTuple):
    """An object that another process can find again.

    Attributes:
        argument: which one of the call's arguments it is, in the order of `pytree`; `TARGET` and `OWNER` for the
            compiled function, and for the object whose method that is.
        identity: of another object.
        parts: of a container, which the call may have made, by their place or key.
        container: its type.
        name: of a number or text, the argument of the followed function that it is.
    """

    argument: int | None = None
    identity: int | None = None
    parts: "tuple[tuple[Any, Reference], ...]" = ()
    container: type | None = None
    name: str | None = None

    @classmethod
    def to_value(cls, value: Any, arguments: Mapping[int, int]) -> "Reference":
        """The reference to an object of this process. `arguments`: the places of the call's arguments, by identity."""
        if id(value) in arguments:
            return cls(argument=arguments[id(value)])
        if type(value) in (tuple, list):
            parts = tuple((place, cls.to_value(part, arguments)) for place, part in enumerate(value))
            return cls(parts=parts, container=type(value))
        if type(value) is dict and all(type(key) is str for key in value):
            parts = tuple((key, cls.to_value(part, arguments)) for key, part in value.items())
            return cls(parts=parts, container=dict)
        return cls(identity=id(value))

    def object_of(self, objects: Mapping[int, Any], leaves: Mapping[int, Any], names: Mapping[str, Any]) -> Any:
        """The object that is referred to.

        Args:
            objects: the objects of this process, by identity.
            leaves: the call's arguments, by place.
            names: the call's arguments, by name.
        """
        if self.name is not None:
            return names.get(self.name, MISSING)
        if self.argument is not None:
            return leaves.get(self.argument, MISSING)
        if self.container is None:
            return objects.get(self.identity or 0, MISSING)
        parts = {key: part.object_of(objects, leaves, names) for key, part in self.parts}
        return parts if self.container is dict else self.container(parts.values())

    def identities(self) -> Iterator[int]:
        """The identities of all objects that it refers to."""
        if self.identity is not None:
            yield self.identity
        for _, part in self.parts:
            yield from part.identities()


@dataclass(frozen=True, kw_only=True)
class DynamoFrame:
    """What Dynamo says of one function that it has compiled: the followed one, another one, or the rest behind a break.

    Attributes:
        function: its name.
        file: its file.
        line: the line that it begins at.
        module: the name of its module.
        guards: what its code depends on.
        sizes: its dynamic sizes.
        state: the values of its guards, as `Compiled.values`, where it was compiled.
        graphs: how many graphs it makes, 0 or 1.
        locals: what its local names are, as far as another process can find them again.
        depends_on_reads: whether its code depends on numbers that were read at a graph break.
    """

    function: str
    file: str
    line: int
    module: str
    guards: tuple[Guard, ...]
    sizes: DynamicSizes
    state: "dict[Guard | str, Any]"
    graphs: int
    locals: "dict[str, Reference]"
    depends_on_reads: bool = False

    @property
    def key(self) -> tuple[str, int, str]:
        """Frames with equal keys have the same code."""
        return self.file, self.line, self.function


@dataclass(eq=False)
class Compiled:
    """One compilation of a function.

    Attributes:
        values: of its guards, and the global settings.
        sizes: its dynamic sizes.
    """

    values: "dict[Guard | str, Any]"
    sizes: DynamicSizes = field(default_factory=DynamicSizes)

    def difference(self, now: Mapping[Guard | str, Any], scope: "Scope") -> Failed | None:
        """The first guard that fails for a call; None if this compilation fits it."""
        dynamic = self.sizes.sources
        for guard, value in self.values.items():
            other = now.get(guard, MISSING)
            if value is MISSING or is_same(value, other):
                continue
            if isinstance(value, TensorValue) and isinstance(other, TensorValue):
                difference = value.difference(other, guard.name if isinstance(guard, Guard) else "", dynamic)
                if difference is not None:
                    return Failed(guard, value, other, difference[1])
            elif not isinstance(guard, Guard) or guard.name not in dynamic or guard.kind == TYPE:
                return Failed(guard, value, other, None)
        return self._size_that_fails(now, scope)

    def _size_that_fails(self, now: Mapping[Guard | str, Any], scope: "Scope") -> Failed | None:
        numbers: dict[Any, Any] = {}
        for symbol in self.sizes.symbols:
            values = symbol.values(scope)
            if not values:
                continue
            numbers[symbol.symbol] = values[0]
            if not symbol.allows(values):
                return self._failed_symbol(symbol, values[0], now)
        for condition in self.sizes.conditions:
            holds = condition.expression.xreplace(numbers)
            if holds in (False, sympy_false()):
                symbols = condition.expression.free_symbols
                source = next(size.sources[0] for size in self.sizes.symbols if size.symbol in symbols)
                return self._failed_size(source, condition.text, now, condition)
        return None

    def _failed_symbol(self, symbol: Symbol, value: float, now: Mapping[Guard | str, Any]) -> Failed:
        """A size or a number that the code is not compiled for."""
        source = symbol.sources[0]
        if math.isnan(value):
            return self._failed_size(source, f"not math.isnan({source})", now)
        if messages.DYNAMO_SIZE.find(source) is not None or symbol.low < symbol.high:
            return self._failed_size(source, f"{bound(symbol.low)} <= {source} <= {bound(symbol.high)}", now)
        # Dynamo has made a number dynamic at first, and then a constant that the code is compiled for.
        failed = self._failed_size(source, source, now)
        constant = cast("Guard", failed.guard)._replace(kind=CONSTANT)
        return Failed(constant, symbol.low if symbol.is_float else int(symbol.low), value, None)

    def _failed_size(
        self, source: str, text: str, now: Mapping[Guard | str, Any], condition: Condition | None = None
    ) -> Failed:
        """A condition on a size that does not hold, as a guard on its tensor."""
        match = messages.DYNAMO_SIZE.find(source)
        name = source if match is None else match["tensor"]
        dimension = None if match is None else int(match["dimension"])
        of_tensor = next((guard for guard in now if isinstance(guard, Guard) and guard.name == name), None)
        file, line, code = (None,) * 3 if of_tensor is None else (of_tensor.file, of_tensor.line, of_tensor.code)
        if condition is not None and condition.file is not None and (file or "").endswith(condition.file):
            line = condition.line
            code = condition.code
        return Failed(Guard(SHAPES, text, False, file, line, code), None, None, dimension)


@dataclass(eq=False)
class Followed:
    """A call that was followed.

    Attributes:
        parts: the functions that Dynamo has compiled for it, with the values of their guards as read here.
        kind: its kind of arguments, where guards are not known.
        places: by the sizes of such calls, where the kernels are kept (`CompilationState.codes`).
        hides: whether some guards look at values that only Dynamo's process can read, such as numbers that are made
            between two graphs.
        asked: the dynamic sizes and numbers of calls with these guards that Dynamo has followed.
        in_vain: how often it was asked, and compiled nothing.
    """

    parts: "list[tuple[DynamoFrame, Compiled]]"
    kind: object
    places: dict[object, int] = field(default_factory=dict)
    hides: bool = False
    asked: set[object] = field(default_factory=set)
    in_vain: int = 0


@dataclass(eq=False)
class CompiledKinds:
    """The calls for which a piece of code was compiled.

    Attributes:
        function: name of the compiled function.
        file: its file.
        line: the line that it begins at.
        followed: the calls that were followed.
        frames: the compilations of each function, with values as Dynamo's own process reads them.
        recompilations: the guards that have failed.
        lowered: by kind of arguments, their number of elements, and where the kernels are kept
            (`CompilationState.codes`).
        limited: where the code stands for calls that come after PyTorch's limit; None if there are none.
        skipped: where the code stands once a call had no operators, as PyTorch then compiles it no more; None before.
        first: where the code of the first compilation is kept; it holds all recompilations.
        refused: by call what PyTorch says of code that must be one graph and is not, and the break.
        passes: how often Dynamo has followed a call.
    """

    function: str
    file: str
    line: int
    followed: list[Followed] = field(default_factory=list)
    frames: dict[tuple[str, int, str], list[Compiled]] = field(default_factory=dict)
    recompilations: dict[object, Recompiled] = field(default_factory=dict)
    lowered: dict[object, list[tuple[int, int]]] = field(default_factory=dict)
    limited: int | None = None
    skipped: int | None = None
    first: int | None = None
    refused: dict[object, tuple[str | None, GraphBreak]] = field(default_factory=dict)
    passes: int = 0
    #: Objects that locals of the functions are, by the identity that they had.
    _objects: weakref.WeakValueDictionary[int, Any] = field(default_factory=weakref.WeakValueDictionary)

    @classmethod
    def of_target(cls, target: Any) -> "CompiledKinds":
        """No compilations yet of this module or function."""
        code = code_of(target)
        if not isinstance(code, CodeType):
            return cls(function=type(target).__name__, file="", line=0)
        return cls(function=code.co_name, file=trace_file_name(code.co_filename), line=code.co_firstlineno)

    @property
    def compilations(self) -> int:
        """How often the function was compiled that was compiled most often, for PyTorch's limit."""
        return max([len(compiled) for compiled in self.frames.values()] or [len(self.followed)])

    def fitting(self, call: Call, kind: object) -> Followed | None:
        """The earlier call whose compiled code a call can use; None for none."""
        for followed in reversed(self.followed):
            if all(
                compiled.difference(state_of(scope, compiled.values), scope) is None
                for scope, compiled in ((self.scope_of(call, frame), compiled) for frame, compiled in followed.parts)
            ) and (followed.parts or followed.kind == kind):
                return followed
        return None

    def add(
        self, call: Call, kind: object, frames: Sequence[DynamoFrame], compiled: Mapping[int, "Failed | None"]
    ) -> Followed:
        """Note a call that was followed.

        Args:
            call: the function, and its arguments by position and by name.
            kind: its kind of arguments, for calls that Dynamo says nothing about.
            frames: the functions of it; empty if that is not known.
            compiled: by place among them, those that were compiled for it, with the guard that has failed.
        """
        wanted = {identity for frame in frames for local in frame.locals.values() for identity in local.identities()}
        if wanted:
            for value in gc.get_objects():
                if id(value) in wanted:
                    with suppress(TypeError):  # it cannot be referred to weakly
                        self._objects[id(value)] = value
        parts = []
        hides = False
        for frame in frames:
            scope = self.scope_of(call, frame)
            state = state_of(scope, frame.guards)
            hides = hides or frame.depends_on_reads or any(not symbol.values(scope) for symbol in frame.sizes.symbols)
            hides = hides or any(
                frame.state[guard] is not MISSING and state[guard] is MISSING for guard in frame.guards
            )
            parts.append((frame, Compiled(state, frame.sizes)))
        for place, failed in compiled.items():
            frame = frames[place]
            if failed is not None:
                self._note(failed, frame)
            self.frames.setdefault(frame.key, []).append(Compiled(frame.state, frame.sizes))
        self.followed.append(Followed(parts, kind, hides=hides))
        self.followed[-1].asked.add(self._dynamic_values(call, self.followed[-1]))
        return self.followed[-1]

    def may_differ(self, followed: Followed, call: Call) -> bool:
        """Whether only Dynamo can say that a call, whose guards hold as far as they are read here, is compiled again.

        That is where guards look at what is made of dynamic sizes and numbers, and these have new values, or at numbers
        that are read at a graph break, which are taken to be others at each call. Dynamo is not asked any more once it
        has compiled nothing a few times.
        """
        if not followed.hides:
            return False
        if any(frame.depends_on_reads for frame, _ in followed.parts) and not followed.in_vain:
            return True
        return followed.in_vain < _MOST_IN_VAIN and self._dynamic_values(call, followed) not in followed.asked

    def asked_in_vain(self, followed: Followed, call: Call) -> None:
        """Note that Dynamo has compiled nothing for a call although `may_differ` was true."""
        followed.asked.add(self._dynamic_values(call, followed))
        followed.in_vain += 1

    def _dynamic_values(self, call: Call, followed: Followed) -> object:
        scopes = [(self.scope_of(call, frame), frame) for frame, _ in followed.parts]
        return tuple(tuple(symbol.values(scope)) for scope, frame in scopes for symbol in frame.sizes.symbols)

    def scope_of(self, call: Call, frame: DynamoFrame) -> "Scope":
        """The local and global names of one function of a call."""
        target, args, kwargs = call
        leaves = dict(enumerate(pytree.tree_leaves((list(args), dict(kwargs)))))
        leaves |= {TARGET: target, OWNER: getattr(target, "__self__", target)}
        scope = scope_of(target, args, kwargs)
        names = scope.arguments
        values = {name: reference.object_of(self._objects, leaves, names) for name, reference in frame.locals.items()}
        known = {name: value for name, value in values.items() if value is not MISSING}
        if (frame.file, frame.line) == (self.file, self.line) or (frame.file, frame.function) == _WRAPPER:
            return Scope({**known, **scope.arguments}, scope.globals)
        module = sys.modules.get(frame.module)
        return Scope(known, {} if module is None else vars(module))

    def _note(self, failed: "Failed", compiled: DynamoFrame) -> None:
        first = failed.recompiled(function=compiled.function, function_file=compiled.file, function_line=compiled.line)
        key = first.kind, first.value, first.dimension, first.file, first.line
        known = self.recompilations.get(key, first)
        self.recompilations[key] = replace(known, recompilations=known.recompilations + 1)


def frame_of(  # noqa: PLR0913
    code: CodeType,
    output: Any,
    *,
    graphs: int,
    arguments: Mapping[int, int],
    names: Mapping[str, Any],
    is_read: Callable[[Any], bool],
    stands_for: Mapping[int, int],
) -> DynamoFrame:
    """What Dynamo says of a function that it has compiled.

    Args:
        code: the function's code.
        output: Dynamo's `OutputGraph`.
        graphs: how many graphs it makes.
        arguments: by the identity of an argument of the call, its place.
        names: the arguments of the followed function by name.
        is_read: says of a value whether it stands for one that was read at a graph break.
        stands_for: by the identity of a fake tensor, that of the program's tensor.
    """
    guards = tuple(guards_of(output.guards))
    scope = Scope(output.local_scope, output.global_scope, stands_for)
    sizes = DynamicSizes.of_shapes(output.shape_env)
    state = state_of(scope, guards)
    looked_at = [*state.values(), *(value for symbol in sizes.symbols for value in symbol.values(scope))]
    return DynamoFrame(
        function=code.co_name,
        file=trace_file_name(code.co_filename),
        line=code.co_firstlineno,
        module=str(output.global_scope.get("__name__", "")),
        guards=guards,
        sizes=sizes,
        state={guard: sendable(value) for guard, value in state.items()},
        graphs=graphs,
        locals={
            name: Reference(name=name) if isinstance(value, _PLAIN) else Reference.to_value(value, arguments)
            for name, value in output.local_scope.items()
            if not isinstance(value, _PLAIN) or is_same(value, names.get(name, MISSING))
        },
        depends_on_reads=any(map(is_read, looked_at)),
    )


def fits(known: Sequence[Compiled], output: Any, stands_for: Mapping[int, int]) -> tuple[bool, Failed | None]:
    """Whether an earlier compilation of a function fits this call, and the guard of the latest one that fails.

    Args:
        known: the earlier compilations.
        output: Dynamo's `OutputGraph` of this call.
        stands_for: by the identity of a fake tensor, that of the program's tensor.
    """
    scope = Scope(output.local_scope, output.global_scope, stands_for)
    failed: Failed | None = None
    for compiled in reversed(known):
        difference = compiled.difference(state_of(scope, compiled.values), scope)
        if difference is None:
            return True, None
        failed = failed or difference
    return False, failed
