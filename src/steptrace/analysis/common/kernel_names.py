"""Short names of kernels."""

import re
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from steptrace.format import clipped

_ANONYMOUS = re.compile(r"\(anonymous namespace\)::|\{anonymous\}::")
_RETURN_TYPE = re.compile(r"^(?:void|float|int|bool|unsigned int)\s+")
#: Names that say only how a kernel loops, and names without meaning.
_LOOP = re.compile(r"elementwise|reduce_kernel|foreach|multi_tensor_apply")
_NAMELESS = frozenset({"Kernel", "Kernel2", "kernel", "kernel2", "device_kernel", "globalKernel"})
#: Template arguments that name the computation.
_FUNCTOR = re.compile(r"\w*Functor\w*|\w+Ops?\b")
_WRAPPERS = frozenset({"UnaryFunctor", "BinaryFunctor", "BUnaryFunctor", "AUnaryFunctor", "OpType", "ReduceOp"})
_FIRST_ARGUMENT = re.compile(r"<(?:\s*\d+,)*\s*(?:\w+::)*(?:gpu_kernel_impl\w*<(?:\w+::)*)?(\w+)")
_SHORT = 60
#: Most characters of the part that distinguishes two kernels; a longer part loses its middle.
_LONGEST_PART = 30
#: First template arguments that say nothing of the computation, and namespaces without information.
_PLAIN_TYPES = frozenset(
    {"float", "double", "int", "long", "bool", "char", "short", "unsigned", "half", "__half", "float2", "__nv_bfloat16"}
)
_PLAIN_NAMESPACES = frozenset({"at", "native", "impl", "internal", "detail", "std", "type"})
#: Tokens of a kernel name, and tokens to ignore. The number of a lambda is no token.
_WORD = re.compile(r"(?<![#A-Za-z0-9])[A-Za-z0-9]+")
_IGNORED = _PLAIN_NAMESPACES | {"c10", "cuda", "anonymous", "namespace", "void", "const", "TensorIteratorBase"}


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
        if computation := functor or _first_argument(plain):
            short = f"{short} [{computation}]"
    return short


def short_names(names: Iterable[str]) -> dict[str, str]:
    """The short name of each of these kernels; kernels that share one get what distinguishes them in angle brackets.

    Those are the words and numbers of the full name that the others lack: `CatArrayBatchedCopy <128, 1>` beside
    `CatArrayBatchedCopy <64>`.
    """
    alike: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        alike.setdefault(short_name(name), []).append(name)
    result = {}
    for short, group in alike.items():
        words = [dict.fromkeys(_WORD.findall(name)) for name in group]
        shared = set.intersection(*map(set, words)) | _IGNORED
        for name, tokens in zip(group, words, strict=True):
            part = ", ".join(token for token in tokens if token not in shared)
            full = full_short_name(name)
            both_ends = full if len(full) <= _SHORT else clipped(full, _SHORT - _LONGEST_PART)
            result[name] = f"{both_ends} <{clipped(part, _LONGEST_PART)}>" if part and len(group) > 1 else short
    # Names that are still equal get numbers.
    uses = Counter(result.values())
    before = Counter[str]()
    for name, text in result.items():
        if uses[text] > 1:
            before[text] += 1
            result[name] = f"{text} #{before[text]}"
    return result


def _with_namespace(bare: str) -> str:
    """A name with its informative namespaces: `gemvx::kernel`."""
    *spaces, last = bare.split()[-1].split("::")
    informative = [space for space in spaces if space and space not in _PLAIN_NAMESPACES]
    return "::".join([*informative[-1:], last])


def _first_argument(plain: str) -> str | None:
    """The unqualified name that a template's first non-numeric argument begins with."""
    match = _FIRST_ARGUMENT.search(plain)
    return match[1] if match and match[1] not in _WRAPPERS else None


def _without(text: str, opening: str, closing: str) -> str:
    """`text` without the content of its outermost brackets; stray brackets stay."""
    kept = []
    depth = 0
    for character in text:
        if character == opening:
            depth += 1
        elif character == closing and depth:
            depth -= 1
        elif depth == 0:
            kept.append(character)
    return "".join(kept)
