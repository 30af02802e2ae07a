"""Messages of other libraries that steptrace reads, because the library gives no code and no type for what they say.

This is the only place for such text, besides that of Snakemake, which its logger plugin reads in a process without
steptrace (`snakemake_logger_plugin_steptrace.texts`). Messages of our own are never read: an error of ours has a class,
a verdict a code. The tests make each library say its message, so a release that words it differently fails there.
"""

import re
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class ForeignMessage:
    """A message that is known by its text.

    Attributes:
        owner: the library that writes it, with the releases that were tried.
        meaning: what the message says.
        otherwise: what happens where a release words it differently.
        pattern: matches the message.
    """

    owner: str
    meaning: str
    otherwise: str
    pattern: re.Pattern[str]

    def find(self, text: object) -> re.Match[str] | None:
        """Where the message stands in a text, or in an error's text; None if it does not."""
        return self.pattern.search(str(text))


HYDRA_NO_SUCH_NAME: Final = ForeignMessage(
    owner="hydra-core 1.3",
    meaning="a key, group or option (`name`) does not exist",
    otherwise="the error suggests no name that was meant",
    pattern=re.compile(r"Could not (?:override|find|load) '(?P<name>[^']+)'"),
)
HYDRA_IN_FILE: Final = ForeignMessage(
    owner="hydra-core 1.3",
    meaning="the error is in a file, named without folder and suffix (`file`)",
    otherwise="the error names no file and line",
    pattern=re.compile(r"\AIn '(?P<file>[^']+)': "),
)
HYDRA_FOLDERS: Final = ForeignMessage(
    owner="hydra-core 1.3",
    meaning="the list of all configuration folders follows, up to the end of the text",
    otherwise="the error shows that list, too",
    pattern=re.compile(r"Config search path:.*\Z", re.DOTALL),
)
OMEGACONF_PLACE: Final = ForeignMessage(
    owner="omegaconf 2.3",
    meaning="a line that says by OmegaConf's own names where a value stands",
    otherwise="the error shows that line, too",
    pattern=re.compile(r"\A\s*(?:full_key:|object_type=|reference_type=)"),
)
MSGSPEC_WRONG_NAME: Final = ForeignMessage(
    owner="msgspec 0.22",
    meaning="a struct has no such field (`key`), or a choice no such value (`value`)",
    otherwise="the error suggests no name that was meant",
    pattern=re.compile(r"\A(?:Object contains unknown field `(?P<key>.*?)`|Invalid enum value '(?P<value>.*?)')\Z"),
)
MSGSPEC_MISSING_FIELD: Final = ForeignMessage(
    owner="msgspec 0.22",
    meaning="a struct's field (`key`) is missing",
    otherwise="the error does not say which key to add",
    pattern=re.compile(r"\AObject missing required field `(?P<key>.*?)`\Z"),
)
MSGSPEC_PATTERN: Final = ForeignMessage(
    owner="msgspec 0.22",
    meaning="the end of a message about a text of the wrong form: the regular expression that it should match",
    otherwise="the error shows the regular expression, beside the same in words",
    pattern=re.compile(r" matching regex.*\Z", re.DOTALL),
)
MSGSPEC_PLACE: Final = ForeignMessage(
    owner="msgspec 0.22",
    meaning="the end of a message: the place of the wrong value in the whole document",
    otherwise="the error says the place twice",
    pattern=re.compile(r" - at `.*\Z", re.DOTALL),
)
MSGSPEC_TRUNCATED: Final = ForeignMessage(
    owner="msgspec 0.22",
    meaning="a JSON value ends too early",
    otherwise="a trace that was cut off is refused as damaged",
    pattern=re.compile(r"truncated"),
)
TORCH_CANNOT_SWAP: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, a RuntimeError",
    meaning="a module's parameter cannot be swapped for another tensor, since a graph holds it",
    otherwise="a prediction of a program that moves such a module fails",
    pattern=re.compile(r"Couldn't swap"),
)
TORCH_MISSES_STREAM: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, a RuntimeError",
    meaning="a backward pass found no stream of the accelerator, which another backend has become",
    otherwise="a backward pass on a real GPU after a prediction fails with PyTorch's own words",
    pattern=re.compile(r"opt_ready_stream && opt_parent_stream"),
)
TORCH_MISSES_KERNEL: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, a NotImplementedError",
    meaning="an operator (`operator`) has no kernel on the CPU for a kind of tensors (`kind`, such as `Sparse`)",
    otherwise="a prediction's error on such an operator names the CPU",
    pattern=re.compile(
        r"\ACould not run 'aten::(?P<operator>[^']+)' with arguments from the '(?P<kind>\w*)CPU' backend"
    ),
)
TORCH_MISSES_CUDA: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, a UserWarning",
    meaning="there is no CUDA device, or flex_attention is not compiled; neither is so on the virtual device",
    otherwise="a prediction shows the warning",
    pattern=re.compile(
        r"\ACUDA initialization: |GetDeviceCount\(?\)? failed|Can't initialize NVML|\Aflex_attention called without"
    ),
)
DYNAMO_LIMIT: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo's `fail_reason` of a compilation",
    meaning="a function was compiled so often that PyTorch does not compile it again",
    otherwise="the function's `limit_reached` is false",
    pattern=re.compile(r"\ADynamo recompile limit exceeded"),
)
DYNAMO_RESUMED: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo",
    meaning="the name of the code after a graph break in a function (`function`)",
    otherwise="that code counts as a function of its own",
    pattern=re.compile(r"\Atorch_dynamo_resume_in_(?P<function>.+)_at_\d+\Z"),
)
DYNAMO_NO_FAKE: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, the error of an operator of the program's own that cannot be traced",
    meaning="the operator has no form for fake tensors",
    otherwise="the prediction goes on where PyTorch ends the program",
    pattern=re.compile(r"There was no fake impl registered for "),
)
DYNAMO_ASKED_FOR: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo's `gb_type` of a graph break",
    meaning="the code itself asks for the graph break",
    otherwise="graph breaks of PyTorch's own code count against budgets",
    pattern=re.compile(r"\ACall to `torch\._dynamo\.graph_break\(\)`\Z"),
)
DYNAMO_HINT: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo's message of a graph break",
    meaning="what PyTorch proposes instead (group 1)",
    otherwise="a graph break has no hints",
    pattern=re.compile(r"^ *Hint: (.+)$", re.MULTILINE),
)
DYNAMO_LINE_OF_GUARD: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo's reason for a recompilation",
    meaning="a frame in the stack of the failed guard (`file`, `line`)",
    otherwise="the recompilation has the first line of its function",
    pattern=re.compile(r'^ *File "(?P<file>.+)", line (?P<line>\d+), in ', re.MULTILINE),
)
DYNAMO_COMPILATION: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo's reason for a recompilation",
    meaning="the number of the compilation whose guard failed, at the beginning of the reason",
    otherwise="the guard's kind is `other`, and its text includes the number",
    pattern=re.compile(r"^\S*\d+/\d+(_\d+)?: "),
)
DYNAMO_OF_MODULE: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo's reason for a recompilation",
    meaning="the guard is on a number that is a module's attribute: PyTorch names the option that makes it dynamic",
    otherwise="the guard's kind is `value` instead of `module_value`",
    pattern=re.compile(r"allow_unspec_int_on_nn_module"),
)
DYNAMO_SIZE: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo's name of a tensor's size",
    meaning="an expression for one size (`dimension`) of a tensor (`tensor`)",
    otherwise="the reason for a recompilation that is predicted has no dimension",
    pattern=re.compile(r"\A(?P<tensor>.+)\.(size|stride)\(\)\[(?P<dimension>\d+)\]\Z"),
)
DYNAMO_LINE_OF_SIZE: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, the place of a condition on dynamic sizes",
    meaning="the line of the program that asks about the size (`code`), its file without folders, and its number",
    otherwise="the reason for a recompilation that is predicted has the line that first uses the tensor",
    pattern=re.compile(r"\A(?P<code>.*)  # (?:.*/)?(?P<file>[^/]+):(?P<line>\d+) in "),
)
#: How Dynamo writes guards in its reason for a recompilation. Each row has the guard's kind, one of
#: `documents.compilations.GuardKind`, and a pattern. Its group `value` is what the guard looks at; sizes and strides
#: also have the group `dimension`. The first pattern that matches at the beginning counts. If a release words a guard
#: differently, its kind is `other`.
DYNAMO_GUARDS: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("size", re.compile(r"tensor '(?P<value>.+)' size mismatch at index (?P<dimension>\d+)")),
    ("stride", re.compile(r"tensor '(?P<value>.+)' stride mismatch at index (?P<dimension>\d+)")),
    ("rank", re.compile(r"tensor '(?P<value>.+)' rank mismatch")),
    ("dtype", re.compile(r"tensor '(?P<value>.+)' dtype mismatch")),
    ("requires_grad", re.compile(r"tensor '(?P<value>.+)' requires_grad mismatch")),
    ("device", re.compile(r"tensor '(?P<value>.+)' (Tensor device index|dispatch key set) mismatch")),
    # In the words of PyTorch up to 2.13, and from 2.14 on.
    ("type", re.compile(r"expected type of '(?P<value>.+?)' to be (a tensor type|<class )")),
    ("type", re.compile(r"___check_type_id\((?P<value>.+), \d+\)")),
    ("object", re.compile(r"___check_obj_id\((?P<value>.+), \d+\)")),
    ("global_state", re.compile(r"GLOBAL_STATE changed: (?P<value>.+)")),
    ("size", re.compile(r"(?P<value>.*\.(size|stride)\(\)\[(?P<dimension>\d+)\].*)")),
    ("length", re.compile(r"len\((?P<value>.+)\) == \d+")),
    ("value", re.compile(r"(?P<value>.+?) == .+")),
    ("type", re.compile(r"(?P<value>\S+) is (not )?None\Z")),
    ("alias", re.compile(r"(?P<value>\S+ is (not )?\S+)")),
    ("alias", re.compile(r"Duplicate tensors? found:?(?P<value>.*)")),
)
#: Dynamo's names of values whose guards have a kind of their own: that kind, and a pattern of the whole name. A guard
#: on any other value is of kind `value` or `module_value`.
DYNAMO_NAMED_VALUES: Final[tuple[tuple[str, re.Pattern[str]], ...]] = (
    ("training", re.compile(r"(?P<value>.+)\.training\Z")),
    ("learning_rate", re.compile(r"(?P<value>.+\.param_groups\[\d+\]\['lr'\])\Z")),
    ("read_value", re.compile(r"(?:L\[')?(?P<value>___stack\d+)(?:'\])?\Z")),
)
DYNAMO_LOCAL: Final = ForeignMessage(
    owner="PyTorch 2.11 to 2.14, Dynamo's name of an object",
    meaning="an argument or a local name (`name`); reasons for recompilations have the name alone",
    otherwise="a predicted recompilation shows the longer name",
    pattern=re.compile(r"L\[\s*'(?P<name>[^']+)'\s*\]"),
)
GPU_IS_MISSING: Final = ForeignMessage(
    owner="any program, and PyTorch",
    meaning="an error about GPUs, such as one that asks for two of them",
    otherwise="the advice on a failed prediction does not name the option `--devices`",
    pattern=re.compile(r"device ordinal|\bgpus?\b|\bcuda:\d", re.IGNORECASE),
)
OUT_OF_MEMORY: Final = ForeignMessage(
    owner="PyTorch (devices and host), CUDA and its libraries (pinned memory, workspaces, communicators), Python, C++",
    meaning="a line of a program's output that says that memory has run out",
    otherwise="the run has the status `failed` instead of `out of memory`",
    pattern=re.compile(
        r"OutOfMemoryError\b|MemoryError\b|(?:CUDA|HIP)(?: error:)? out of memory|Cuda failure \d+ 'out of memory'"
        r"|(?:CUBLAS|CUDNN)_STATUS_ALLOC_FAILED|DefaultCPUAllocator: (can't allocate|not enough) memory|std::bad_alloc"
    ),
)
ERROR_LINE: Final = ForeignMessage(
    owner="Python's tracebacks, steptrace's messages, compilers",
    meaning="a line of a program's output that names the error by which the program has ended",
    otherwise="the error of a failed run is the last line of its output",
    pattern=re.compile(
        r"\A(?:[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|Exit|Timeout|Missing)\b(?:: .*)?\Z|error: "
        r"|\S+:\d+:\d+: (?:fatal )?error: )"
    ),
)
