"""Counts what happens on the virtual device, by place: syncs, what could not be judged, operators; a prediction."""

import gc
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import Tensor

from steptrace.documents.estimate import COMPILED, Estimate, OperatorCalls
from steptrace.engine.frames import Site as ProgramSite
from steptrace.engine.frames import trace_file_name
from steptrace.engine.step_counters import StepBranch
from steptrace.estimate.driver import USUAL
from steptrace.estimate.gpus import gpu_named
from steptrace.predict import memory
from steptrace.predict.backend import machine
from steptrace.predict.memory import UNFINISHED
from steptrace.predict.operators import OperatorLog, Overload
from steptrace.predict.places import region_of, running_sites
from steptrace.predict.pytorch import current_node
from steptrace.predict.threads import Helper, settle

if TYPE_CHECKING:
    import pandas as pd

#: The beginning of the label under which PyTorch runs an optimizer's step.
_OPTIMIZER = "Optimizer.step#"
#: What stands between an operator's namespace and its name.
_OPERATOR = "::"


_READ_EARLY: Final = "copied from the device without blocking, and nothing was waited for since"


@dataclass(frozen=True, kw_only=True)
class CountedPlace:
    """One place in a program, of an operation in it, and how often that was called over everything that was predicted.

    `file` and `line` are the innermost frame that is neither PyTorch's nor the pipeline's own, of the forward pass
    also for what happens in the backward pass (`phase`). None means that only such frames were on the stack. `label` is
    the innermost `record_function` label then running.

    Where that line is a library's, `program_file` and `program_line` are the innermost one outside of the libraries.

    `phase` is one of `data` (copies of a batch to the device before the forward pass), `forward`, `backward`,
    `optimizer` and `other` (after the backward pass or the optimizer, until the next step's forward pass begins).
    """

    op: str
    file: str | None
    line: int | None
    function: str | None
    code: str | None
    label: str | None
    phase: str
    count: int
    reason: str
    program_file: str | None = None
    program_line: int | None = None
    #: How often in each step, where steps were told apart (`Syncs.step_ends`).
    by_step: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Its count, operator, line and code in one line."""
        place = "no line of the program" if self.file is None else f"{self.file}:{self.line}"
        return "  ".join([f"{self.count} x {self.op}", place, *filter(None, [self.code])])


class Unknown(CountedPlace):
    """An operation whose syncs could not be judged."""


class Assumed(CountedPlace):
    """A value that the program read, or a size that it needed, and that was not computed."""


class EarlyRead(CountedPlace):
    """A value that the program reads while the copy of it from the device may be under way: it may be the old one."""


@dataclass(frozen=True, kw_only=True)
class Site(CountedPlace):
    """One that makes the host wait, `count` times, for a copy, a stream, an event or the device (`kind`).

    `pinned`: of a copy to the device, whether the host's memory is pinned; else None.
    """

    kind: str
    pinned: bool | None = None

    def __str__(self) -> str:
        """Its count, what waits, operator, line and code in one line."""
        return super().__str__().replace(" x ", f" x {self.kind} by ", 1)


_Counted = TypeVar("_Counted", bound=CountedPlace)


def _without_part(place: _Counted) -> _Counted:
    """A place without the part of the step that it ran in, unless that is the backward pass, or all that tells it."""
    return place if place.phase == "backward" or place.file is None else replace(place, phase="")


class _Thread(threading.local):
    """What is running in this thread of the program."""

    #: The `record_function` labels, the outermost first; each of them once; whether an optimizer's is among them.
    labels: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    in_optimizer = False
    is_paused = False
    #: The call of compiled code that is running, see `steptrace.predict.compiled`.
    region: Any = None
    #: What runs outside of the backward pass and the optimizer: `data`, `forward` or `other`.
    part = "data"
    #: Syncs of the operator that is about to run, which waits for what it launches itself.
    coming = 0
    #: Of a thread beside that of the training, once it has operated on the device.
    helper: Helper | None = None

    def __init__(self, owner: int) -> None:
        """Begin as a thread that prepares data, until it takes a weight; `owner` is that of the training."""
        self.is_owner = threading.get_ident() == owner

    def is_training(self, tensors: Sequence[Tensor]) -> bool:
        """Whether work on these tensors is more than the preparation of a batch, which other threads do, too."""
        return self.is_owner or any(tensor.requires_grad for tensor in tensors)


class Syncs:
    """What `predict_syncs` yields; it fills while the program runs, in whichever of its threads.

    One at a time is active in a process.
    """

    active: "Syncs | None" = None

    def __init__(self) -> None:
        self._thread = _Thread(threading.get_ident())
        #: The rows by which operators are judged, a `steptrace.predict.rules.RuleTable`, and the context that a thread
        #: enters to find the device. `predict_syncs` sets both.
        self.rules: Any = None
        self.modes: Callable[[], AbstractContextManager[None]] | None = None
        #: Held while counts change or are read; memory that is freed meanwhile may change them in the same thread.
        self._lock = threading.RLock()
        self._helpers: list[Helper] = []
        self._sites: Counter[Site] = Counter()
        self._unknown: Counter[Unknown] = Counter()
        self._lasting: dict[Unknown, None] = {}
        self._assumed: Counter[Assumed] = Counter()
        self._early_reads: Counter[EarlyRead] = Counter()
        #: The counts of all places at the end of each step.
        self._steps: list[Counter[CountedPlace]] = []
        self._operator_log = OperatorLog()
        if memory.allocator().live:
            gc.collect()  # or cycles of an earlier prediction would hold memory, and give it back within this one
        memory.allocator().reset_peak()
        self._operators: Counter[str] = Counter()
        #: The same over everything, labelled or not. A proxy for the number of kernel launches.
        self.operator_total = 0

    @property
    def total(self) -> int:
        """Predicted syncs so far."""
        with self._lock:
            return self._sites.total()

    @property
    def sites(self) -> list[Site]:
        """Where they are, in the order of their first occurrence.

        A line that runs in several parts of a step is one site, whose `phase` is the part with most of its syncs. Its
        backward pass is another.
        """
        with self._lock:
            return self._merged(self._sites)

    @property
    def unknown(self) -> list[Unknown]:
        """What could not be judged: the total may be higher by these."""
        with self._lock:
            return self._merged(dict.fromkeys(self._lasting, 1) | self._unknown)

    @property
    def assumed(self) -> list[Assumed]:
        """Where the program read what was not computed: counts behind such a place may differ on a GPU."""
        with self._lock:
            return self._merged(self._assumed)

    @property
    def early_reads(self) -> list[EarlyRead]:
        """Where the program read what it had copied from the device without blocking, before it waited for anything."""
        with self._lock:
            return self._merged(self._early_reads)

    def _merged(self, places: Mapping[_Counted, int]) -> list[_Counted]:
        """Places with their counts, in all and by step; those that differ only in the part of the step are one."""
        alike: dict[_Counted, list[_Counted]] = {}
        for place in places:
            alike.setdefault(_without_part(place), []).append(place)
        merged = []
        for group in alike.values():
            so_far = [0, *(sum(counts[place] for place in group) for counts in self._steps)]
            by_step = tuple(later - earlier for earlier, later in pairwise(so_far))
            count = sum(places[place] for place in group)
            merged.append(replace(max(group, key=places.__getitem__), count=count, by_step=by_step))
        return merged

    def step_ends(self) -> None:
        """Note that a step has ended: what was counted since the last one, or since `reset`, is this step's."""
        with self._lock:
            counts: Counter[CountedPlace] = Counter()
            for places in (self._sites, self._unknown, self._assumed, self._early_reads):
                counts.update(places)
            self._steps.append(counts)

    def copied_before(self) -> int:
        """Syncs before the forward pass so far: those of a batch's copies, and of a first step's set-up."""
        with self._lock:
            return sum(count for site, count in self._sites.items() if site.phase == "data")

    @property
    def region(self) -> Any:
        """The call of compiled code that runs in this thread, None outside of any."""
        return self._thread.region

    @region.setter
    def region(self, region: Any) -> None:
        self._thread.region = region

    def region_of(self, node: object) -> Any:
        """The call of compiled code that an operator belongs to: that of the running node in a backward pass."""
        return self._thread.region if node is None else region_of(node)

    @property
    def operators_per_label(self) -> dict[str, int]:
        """Operators that do work (not mere views), per `record_function` label; nested ones in both."""
        with self._lock:
            return dict(self._operators)

    @property
    def operators(self) -> tuple[OperatorCalls, ...]:
        """Operators that do work on the first virtual GPU, with the shapes of their tensors."""
        with self._lock:
            return self._operator_log.calls()

    @property
    def queue(self) -> tuple[int, ...]:
        """The order of these calls and of the syncs: positions in `operators`, and `SYNC` where the host waits."""
        with self._lock:
            return self._operator_log.queue()

    @property
    def peak_memory_bytes(self) -> int:
        """The most bytes that the first virtual GPU's allocator has held since the last `reset`."""
        return memory.allocator().peak

    def estimate(self, gpu: str) -> Estimate:
        """Time, GPU busy and memory of what was followed, as one step, on a GPU by its name (`steptrace.estimate`).

        Raises:
            ConfigError: there is no GPU of that name; the message names those that exist.
        """
        from steptrace.estimate.step import FollowedStep, estimate_step  # imports numpy, as nothing here needs before

        prediction = Prediction.of(self)
        followed = FollowedStep(
            operators=prediction.operator_calls,
            syncs=prediction.total,
            queue=prediction.queue,
            peak_memory_bytes=prediction.peak_memory_bytes,
            tf32=prediction.tf32,
            tf32_convolutions=prediction.tf32_convolutions,
            compiled=[(place.file, place.line) for place in prediction.unknown if place.op == COMPILED],
        )
        return estimate_step(followed, gpu_named(gpu))

    def to_frame(self) -> "pd.DataFrame":
        """A DataFrame with a row per line that syncs, most syncs first; needs pandas.

        Columns: `count` over everything followed since the last `reset`, `kind`, `op`, `phase`, `label`, `file`,
        `line`, `function`, `code`, and `reason`, which says why the operator waits.
        """
        import pandas as pd  # the module itself needs PyTorch alone

        names = ["count", "kind", "op", "phase", "label", "file", "line", "function", "code", "reason"]
        sites = sorted(self.sites, key=lambda site: -site.count)
        return pd.DataFrame([[getattr(site, name) for name in names] for site in sites], columns=names)

    def __str__(self) -> str:
        """The number of syncs, and a line per place, as `steptrace predict` prints them."""
        sites, unknown = sorted(self.sites, key=lambda site: -site.count), self.unknown
        lines = [f"{self.total} {'sync' if self.total == 1 else 'syncs'} predicted"]
        lines += [f"  {site}" for site in sites]
        if unknown:
            lines.append("not covered, so there may be more:")
            lines += [f"  {place}" for place in unknown]
        return "\n".join(lines)

    def sync(self, kind: str, op: str, reason: str, count: int = 1, *, pinned: bool | None = None) -> None:
        """Record `count` syncs at the program's running line."""
        if self._thread.is_paused:
            return
        site = Site(**self._place(op, reason), kind=kind, pinned=pinned)
        UNFINISHED.clear()  # what was copied before is there now
        with self._lock:
            self._sites[site] += count
            if _OPERATOR in op:
                self._thread.coming += count
            else:
                self._waits(count)

    def reads(self, op: str, tensors: Iterable[Tensor]) -> None:
        """Look whether the host reads, of these tensors in its memory, one that is still being copied there."""
        early = [tensor for tensor in tensors if tensor in UNFINISHED]
        if not early or self._thread.is_paused:
            return
        for tensor in early:
            UNFINISHED.discard(tensor)  # one remark for a copy
        place = EarlyRead(**self._place(op, _READ_EARLY))
        with self._lock:
            self._early_reads[place] += 1

    def cannot_judge(self, op: str, reason: str) -> None:
        """Record that the syncs of an operation are not known."""
        if self._thread.is_paused:
            return
        place = Unknown(**self._place(op, reason))
        with self._lock:
            self._unknown[place] += 1

    def kernel(self, name: str, reason: str, tensors: Sequence[Tensor]) -> None:
        """Record the launch of a kernel that is not followed."""
        self.begins(tensors, current_node(), from_host=False, prepares=False)
        self.operator()
        self.cannot_judge(name, reason)

    def always_unknown(self, op: str, reason: str) -> None:
        """Record that the syncs of something set up here are not known, whenever it runs: not forgotten by `reset`."""
        place = Unknown(**self._place(op, reason))
        with self._lock:
            self._lasting[place] = None

    def lacks(self, reason: str) -> None:
        """Record that this PyTorch lacks something that predictions need: a remark of no line, kept by `reset`."""
        place: dict[str, Any] = dict.fromkeys((*ProgramSite._fields, "code", "label"))
        with self._lock:
            self._lasting[
                Unknown(**place, op=f"PyTorch {torch.__version__}", phase="other", count=0, reason=reason)
            ] = None

    def assume(self, op: str, reason: str) -> None:
        """Record that something read here was not computed."""
        if self._thread.is_paused:
            return
        place = Assumed(**self._place(op, reason))
        with self._lock:
            self._assumed[place] += 1

    def ran(self, overload: Overload, call: tuple[Any, Any], virtual: Sequence[Any], result: Any, node: object) -> None:
        """Record an operator that has run on the first virtual GPU.

        Args:
            overload: the operator.
            call: its arguments, by position and by name.
            virtual: the tensors of the device among them.
            result: what it has returned.
            node: the running autograd node, or None.
        """
        if self._thread.is_paused:
            return
        site, _ = running_sites(node)
        with self._lock:
            self._operator_log.add(overload, call, virtual, result, self._phase(node), site)
            self._waits(self._thread.coming)
        self._thread.coming = 0

    def _waits(self, count: int) -> None:
        """Note that the host waits between operators; what prepares batches in another thread waits beside them."""
        thread = self._thread
        if thread.is_owner or thread.part != "data":
            self._operator_log.sync(count)

    def batch_arrives(self) -> None:
        """A batch has come, or a step begins: what is copied to the device now is data."""
        self._thread.part = "data"

    def begins(self, tensors: Sequence[Tensor], node: object, *, from_host: bool, prepares: bool) -> None:
        """An operator or kernel is about to run on the device.

        Args:
            tensors: what it is given.
            node: the running autograd node, or None.
            from_host: whether it copies a tensor of the host to the device.
            prepares: whether it is a view, or works in place, as what prepares a batch or sets gradients to zero.
        """
        thread = self._thread
        if thread.helper is None and not thread.is_owner:
            thread.helper = Helper()
            with self._lock:
                self._helpers.append(thread.helper)
        part = thread.part
        if node is not None or thread.in_optimizer:
            thread.part = "other"
        elif from_host:
            thread.part = "data" if part == "other" else part
        elif prepares or part == "forward":
            pass
        elif part == "other" and not torch.is_grad_enabled():
            pass  # an evaluation between two steps
        elif any(map(_is_trained, tensors)) or (tensors and part == "data" and thread.is_training(tensors)):
            thread.part = "forward"

    def forward_begins(self) -> None:
        """A function that autograd records is called, outside of a backward pass."""
        if current_node() is None and not self._thread.in_optimizer:
            self._thread.part = "forward"

    def settle(self) -> None:
        """Wait until the program's other threads have done what they were asked for (`steptrace.predict.threads`)."""
        with self._lock:
            self._helpers = [helper for helper in self._helpers if helper.is_alive()]
            helpers = tuple(self._helpers)
        settle(helpers)

    def _phase(self, node: object) -> str:
        """The part of the step that is running."""
        if node is not None:
            return "backward"
        return "optimizer" if self._thread.in_optimizer else self._thread.part

    def operator(self) -> None:
        """Count one operator that does work on the device."""
        if self._thread.is_paused:
            return
        with self._lock:
            self.operator_total += 1
            for label in self._thread.running:
                self._operators[label] += 1

    def enter(self, label: str) -> None:
        """A `record_function` block begins."""
        self._set_labels((*self._thread.labels, label))

    def leave(self) -> None:
        """The innermost `record_function` block ends."""
        self._set_labels(self._thread.labels[:-1])

    @contextmanager
    def outside_optimizer(self) -> Iterator[None]:
        """While a closure of the program's own runs inside an optimizer's step: it is no part of that label."""
        labels = self._thread.labels
        self._set_labels(tuple(label for label in labels if not label.startswith(_OPTIMIZER)))
        try:
            yield
        finally:
            self._set_labels(labels)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While nothing of this thread is recorded: what runs here is not the program's."""
        thread = self._thread
        before, thread.is_paused = thread.is_paused, True
        try:
            yield
        finally:
            thread.is_paused = before

    def _set_labels(self, labels: tuple[str, ...]) -> None:
        thread = self._thread
        thread.labels = labels
        thread.running = tuple(dict.fromkeys(labels))
        thread.in_optimizer = any(label.startswith(_OPTIMIZER) for label in labels)

    def reset(self) -> None:
        """Forget all counts, as after a warm-up step."""
        with self._lock:
            self._sites.clear()
            self._unknown.clear()
            self._operators.clear()
            self._assumed.clear()
            self._early_reads.clear()
            self._steps.clear()
            self._operator_log.clear()
            memory.allocator().reset_peak()
            self.operator_total = 0
        self._thread.coming = 0

    def _place(self, op: str, reason: str) -> dict[str, Any]:
        """The fields of a `CountedPlace` at the program's running line, not counted yet."""
        node = current_node()
        site, program = running_sites(node)
        place = dict.fromkeys((*ProgramSite._fields, "code")) if site is None else {**site._asdict(), "code": site.code}
        if program is not None and program != site:
            place |= {"program_file": program.file, "program_line": program.line}
        labels = self._thread.labels
        label = labels[-1] if labels else None
        return {**place, "op": op, "label": label, "phase": self._phase(node), "count": 0, "reason": reason}


def _is_trained(tensor: Tensor) -> bool:
    """Whether a tensor is a weight, or a leaf that gets a gradient: what takes one is part of a forward pass."""
    return isinstance(tensor, torch.nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)


@dataclass(frozen=True)
class Prediction:
    """What was followed, frozen: all counts are over all followed steps together.

    The reader's side of it is `steptrace.documents.probe.Prediction`.

    `batch_size` is what a config was followed with, None for a function. `queue`: see `Syncs.queue`; of a program, over
    all followed steps. `devices`: GPUs that train together, of a config. `tf32`, `tf32_convolutions`: whether float32
    products, and convolutions, may be in TF32. `gpu`: the GPU that the program was told of.
    """

    total: int
    sites: tuple[Site, ...]
    unknown: tuple[Unknown, ...]
    operators_per_section: dict[str, int]
    operators: int
    assumed: tuple[Assumed, ...] = ()
    early_reads: tuple[EarlyRead, ...] = ()
    peak_memory_bytes: int | None = None
    batch_size: int | None = None
    operator_calls: tuple[OperatorCalls, ...] = ()
    queue: tuple[int, ...] = ()
    devices: int = 1
    tf32: bool = False
    tf32_convolutions: bool = True
    gpu: str = USUAL
    #: Syncs of each step, and of each before those that were followed; empty where steps are not told apart.
    by_step: tuple[int, ...] = ()
    warmup_by_step: tuple[int, ...] = ()
    #: Where a program branches on a step counter.
    branches: tuple[StepBranch, ...] = ()

    @classmethod
    def of(cls, syncs: Syncs) -> "Prediction":
        """Freeze what has been predicted so far, naming files as a trace of the program does."""
        return cls(
            total=syncs.total,
            sites=tuple(_named(site) for site in syncs.sites),
            unknown=tuple(_named(unknown) for unknown in syncs.unknown),
            operators_per_section=syncs.operators_per_label,
            operators=syncs.operator_total,
            assumed=tuple(_named(place) for place in syncs.assumed),
            early_reads=tuple(_named(place) for place in syncs.early_reads),
            peak_memory_bytes=syncs.peak_memory_bytes,
            operator_calls=syncs.operators,
            queue=syncs.queue,
            # The older switches (`allow_tf32`) raise once a program has used the newer ones, which know of both.
            tf32=torch.backends.cuda.matmul.fp32_precision == "tf32",
            tf32_convolutions=torch.backends.cudnn.conv.fp32_precision == "tf32",  # type: ignore[attr-defined]
            gpu=machine.driver.gpu,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the probe leaves it."""
        return {**asdict(self), "branches": [branch._asdict() for branch in self.branches]}


def _named(place: _Counted) -> _Counted:
    program = place.program_file
    return replace(
        place,
        file=place.file and trace_file_name(place.file),
        program_file=program and trace_file_name(program),
    )
