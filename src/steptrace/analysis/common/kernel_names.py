"""Short names of kernels."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from steptrace.format import clipped

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::")
_RETURN_TYPE = re.compile(r"^(?:void|float|int|bool|unsigned int)\s+")
#: Kernels named only by their loop, and kernels with meaningless names.
_LOOP = re.compile(r"elementwise|reduce_kernel|foreach|multi_tensor_apply")
_NAMELESS = frozenset({"Kernel", "Kernel2", "kernel", "kernel2", "device_kernel", "globalKernel"})
#: Template arguments that name the computation.
_FUNCTOR = re.compile(r"\w*Functor\w*|\w+Ops?\b")
_WRAPPERS = frozenset({"UnaryFunctor", "BinaryFunctor", "BUnaryFunctor", "AUnaryFunctor", "OpType", "ReduceOp"})
_FIRST_ARGUMENT = re.compile(r"<(?:\s*\d+,)*\s*(?:\w+::)*(?:gpu_kernel_impl\w*<(?:\w+::)*)?(\w+)")
_SHORT = 60
#: Most characters of the part that distinguishes two kernels; longer ones lose their middle.
_LONGEST_PART = 30
#: First arguments that repeat the name, and namespaces without information.
_PLAIN_TYPES = frozenset(
    {"float", "double", "int", "long", "bool", "char", "short", "unsigned", "half", "__half", "float2", "__nv_bfloat16"}
)
_SILENT_SPACES = frozenset({"at", "native", "impl", "internal", "detail", "std", "type"})
#: The parameters of the lambda that an argument ends with.
_LAMBDA = re.compile(r"\{lambda\(([^()]*)\)#\d+\}\Z")
_SPACES = re.compile(r"(?:\w+::)+")


def short_name(name: str) -> str:
    """A kernel's name without return type, namespaces, template arguments and parameters.

    PyTorch's generic kernels keep their functor, which names the computation:
    `vectorized_elementwise_kernel [CUDAFunctor_add]`. Cut to 60 characters.
    """
    short = full_short_name(name)
    return short if len(short) <= _SHORT else short[: _SHORT - 1] + "…"


@lru_cache(maxsize=1 << 14)
def full_short_name(name: str) -> str:
    """The `short_name` of a kernel, not cut."""
    if name.startswith(("Memcpy", "Memset")):
        return name
    plain = _RETURN_TYPE.sub("", _ANONYMOUS.sub("", name))
    bare = _without(_without(plain, "<", ">"), "(", ")").strip()
    short = bare.split("::")[-1].strip() or bare or name
    if short in _NAMELESS:
        argument = _first_argument(plain)
        short = _with_namespace(bare) if argument is None or argument in _PLAIN_TYPES else argument
    elif _LOOP.search(short):
        arguments = plain[plain.find(short) + len(short) :]
        functor = next((f for f in _FUNCTOR.findall(arguments) if f not in _WRAPPERS), None)
        if telling := functor or _first_argument(plain):
            short = f"{short} [{telling}]"
    return short


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The short name of each of a table's kernels; of different kernels with the same one, with what tells them apart.

    That is what differs in their template arguments: `CatArrayBatchedCopy <128, 1>` beside `CatArrayBatchedCopy <64,
    64>`.
    """
    alike: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        alike.setdefault(short_name(name), []).append(name)
    result = {}
    for short, group in alike.items():
        if len(group) == 1:
            result[group[0]] = short
            continue
        # Long names can differ in the part that was cut off.
        cut = _cut_apart([full_short_name(name) for name in group])
        if len(set(cut)) < len(cut):
            parts = _differences([_arguments(_ANONYMOUS.sub("", name)) for name in group])
            cut = [
                f"{text} <{clipped(part, _LONGEST_PART)}>" if part else text
                for text, part in zip(cut, parts, strict=True)
            ]
        result.update(zip(group, cut, strict=True))
    # Names that are still equal get numbers.
    often, before = Counter(result.values()), Counter[str]()
    for name, text in result.items():
        if often[text] > 1:
            before[text] += 1
            result[name] = f"{text} #{before[text]}"
    return result


def _with_namespace(bare: str) -> str:
    """A name with its informative namespaces: `gemvx::kernel`."""
    *spaces, last = bare.split()[-1].split("::")
    telling = [space for space in spaces if space and space not in _SILENT_SPACES]
    return "::".join([*telling[-1:], last])


def _first_argument(plain: str) -> str | None:
    """The unqualified name that a template's first non-numeric argument begins with."""
    match = _FIRST_ARGUMENT.search(plain)
    return match[1] if match and match[1] not in _WRAPPERS else None


def _without(text: str, opening: str, closing: str) -> str:
    """`text` without the content of its outermost brackets; stray brackets stay."""
    kept, depth = [], 0
    for character in text:
        if character == opening:
            depth += 1
        elif character == closing and depth:
            depth -= 1
        elif depth == 0:
            kept.append(character)
    return "".join(kept)


def _cut_apart(names: list[str]) -> list[str]:
    """Long names cut so that they still differ: without their middle, or, if they differ there, without their end."""
    cut = [clipped(name, _SHORT) for name in names]
    if len(set(cut)) == len(set(names)):
        return cut
    # Some letters before the first difference, so that its word can be read.
    same = next((place for place, letters in enumerate(zip(*names, strict=False)) if len(set(letters)) > 1), 0)
    begin = max(same - 8, 0)
    return [f"{name[:20]}…{name[begin : begin + _SHORT - 22]}…" for name in names]


def _arguments(text: str) -> list[str]:
    """The template arguments of a type, or of a function's name: the last ones before its parameters."""
    arguments: list[str] = []
    depth, begin = 0, 0
    for place, character in enumerate(text):
        if depth == 0 and character == "(":
            break
        if character in "<({":
            depth += 1
            if depth == 1:
                arguments, begin = [], place + 1
        elif depth and character in ">)}":
            depth -= 1
            if depth == 0:
                arguments.append(text[begin:place].strip())
        elif depth == 1 and character == ",":
            arguments.append(text[begin:place].strip())
            begin = place + 1
    return arguments


def _differences(lists: list[list[str]]) -> list[str]:
    """The arguments in which the lists differ, each once, as short as possible."""
    if len({len(arguments) for arguments in lists}) > 1:
        return [", ".join(dict.fromkeys(_unqualified(argument) for argument in arguments)) for arguments in lists]
    columns = [_distinguishing_parts(list(column)) for column in zip(*lists, strict=True) if len(set(column)) > 1]
    return [", ".join(part for part in dict.fromkeys(parts) if part) for parts in zip(*columns, strict=True)] or [
        ""
    ] * len(lists)


def _distinguishing_parts(values: list[str]) -> list[str]:
    """One argument of several kernels: its name if names differ, and within equal names the parts that differ."""
    heads = [_unqualified(value) for value in values]
    several = len(set(heads)) > 1
    parts = list(heads)
    for head in set(heads):
        rows = [row for row, other in enumerate(heads) if other == head]
        inside = _differences([_arguments(values[row]) for row in rows])
        for row, inner in zip(rows, inside, strict=True):
            # A number needs the name around it.
            bare = not several and any(character.isalpha() for character in inner)
            parts[row] = inner if bare or (not inner and not several) else f"{head}<{inner}>" if inner else head
    return parts


def _unqualified(value: str) -> str:
    """An argument without namespaces and arguments of its own; of a lambda the types of its parameters."""
    if match := _LAMBDA.search(value):
        return match[1]
    return _without(_without(_SPACES.sub("", value), "<", ">"), "(", ")").strip()
