"""Counts what happens on the virtual device, by place: syncs, what could not be judged, operators; a prediction."""

import gc
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, TypeVar

import torch
from torch import Tensor

from steptrace.documents.compiled import FIRST_CALL, RUNS_UNCOMPILED, CompiledCode, CompiledStep
from steptrace.documents.estimate import COMPILED, Estimate, OperatorCalls
from steptrace.engine.frames import SourceLine, trace_file_name
from steptrace.engine.step_counters import AwaitedBranch, StepBranch
from steptrace.estimate.driver import USUAL
from steptrace.estimate.gpus import gpu_named
from steptrace.format import plural
from steptrace.predict import memory
from steptrace.predict.backend import machine
from steptrace.predict.guards import CompiledKinds
from steptrace.predict.limit import WaitInCaptureError
from steptrace.predict.memory import UNFINISHED
from steptrace.predict.operators import OperatorLog, Overload
from steptrace.predict.places import is_inside, region_of, running_sites
from steptrace.predict.pytorch import current_node
from steptrace.predict.threads import Helper, settle
from steptrace.torch_names import SYNC_BATCH_NORM
from steptrace.words.estimate import with_reasons

if TYPE_CHECKING:
    import pandas as pd

    from steptrace.documents.prediction import PredictedStep

#: The beginning of the label under which PyTorch runs an optimizer's step.
_OPTIMIZER = "Optimizer.step#"
#: The separator of an operator's namespace and its name.
_OPERATOR = "::"


_READ_EARLY: Final = "copied from the device without blocking, and nothing was waited for since"


@dataclass(frozen=True, kw_only=True)
class CountedPlace:
    """One place in a program, an operation there, and how often it was called in everything that was predicted.

    `file` and `line` are the innermost frame that belongs neither to PyTorch nor to the pipeline. For an operation of
    the backward pass (`phase`) they are those of the forward pass. They are None if the stack has no such frame.
    `label` is the innermost `record_function` label at that moment.

    If the line belongs to a library, `program_file` and `program_line` are the innermost line outside of libraries.

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
    reason: str
    program_file: str | None = None
    program_line: int | None = None
    #: How often in each step, where steps were told apart (`Syncs.step_ends`).
    by_step: tuple[int, ...] = ()
    count: int

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
    """The state of one thread of the program: its phase and its labels."""

    #: The `record_function` labels, the outermost first; each of them once; whether an optimizer's is among them.
    labels: tuple[str, ...] = ()
    running: tuple[str, ...] = ()
    in_optimizer = False
    is_paused = False
    #: The call of compiled code that is running, see `steptrace.predict.compiled`.
    region: Any = None
    #: The phase outside of the backward pass and the optimizer: `data`, `forward` or `other`.
    part = "data"
    #: Syncs of the next operator that wait for work that the operator itself launches.
    coming = 0
    #: Set for a thread other than the training's, once it has operated on the device.
    helper: Helper | None = None
    #: What a CUDA graph has captured in this thread so far; None while none captures.
    captured: "list[Callable[[], None]] | None" = None
    #: Whether a CUDA graph is replayed, and the part of the step in which its running operator was captured.
    replays = False
    replayed_part = ""
    #: Whether the replay has launched nothing so far.
    replay_begins = False

    def __init__(self, owner: int) -> None:
        """A thread counts as one that prepares data until it takes a weight; `owner` is the training's thread."""
        self.is_owner = threading.get_ident() == owner

    def is_training(self, tensors: Sequence[Tensor]) -> bool:
        """Whether work on these tensors is more than the preparation of a batch, which other threads do, too."""
        return self.is_owner or any(tensor.requires_grad for tensor in tensors)


class Syncs:
    """The syncs of a prediction. `predict_syncs` yields it, and it fills while the program runs, in all its threads.

    Only one is active in a process at a time.
    """

    active: "Syncs | None" = None

    def __init__(self) -> None:
        self._thread = _Thread(threading.get_ident())
        #: The rows by which operators are judged, a `steptrace.predict.sync_rules.SyncRules`, and the context that a
        #: thread enters to find the device. `predict_syncs` sets both.
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
        #: The code that the program compiles, see `steptrace.predict.compiled`.
        self.codes: list[CompiledCode] = []
        #: The program's stance on compiling, as PyTorch notes it; None as long as it has set none.
        self.stance: Any = None
        #: Whether kernels and graph breaks of compiled code are found; attributes of PyTorch without a prediction.
        self.follows_compiled = False
        #: Whether modules are followed as if the program compiled them, beside its step as it is.
        self.compiles_modules = False
        self.originals: dict[tuple[Any, str], Any] = {}
        #: Which sizes and numbers of compiled code have varied so far, in PyTorch's own form; None for none.
        self.code_state: Any = None
        #: Dynamo's names of numbers that it has found to be constants.
        self.specialized_numbers: frozenset[str] = frozenset()
        #: What each piece of code was compiled for, by its code object and settings.
        self.guarded_code: dict[object, CompiledKinds] = {}
        self._compiled_calls = 0
        if memory.allocator().live:
            gc.collect()  # or cycles of an earlier prediction would hold memory, and give it back within this one
        memory.allocator().reset_peak()
        memory.allocator().give_back()
        memory.allocator().reset_program_peak()
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
        """The places of the syncs, in the order of their first occurrence.

        A line that runs in several parts of a step is one site, whose `phase` is the part with most of its syncs. Its
        backward pass is another.
        """
        with self._lock:
            return self._merged(self._sites)

    @property
    def unknown(self) -> list[Unknown]:
        """The operations that could not be judged: the total may be higher by them."""
        with self._lock:
            return self._merged(dict.fromkeys(self._lasting, 1) | self._unknown)

    @property
    def assumed(self) -> list[Assumed]:
        """The places at which the program read a value that was not computed: later counts may differ on a GPU."""
        with self._lock:
            return self._merged(self._assumed)

    @property
    def early_reads(self) -> list[EarlyRead]:
        """The places at which the program read a non-blocking copy from the device before it waited for the copy."""
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
        """The number of syncs before the forward pass so far: of a batch's copies, and of a first step's set-up."""
        with self._lock:
            return sum(count for site, count in self._sites.items() if site.phase == "data")

    @property
    def region(self) -> Any:
        """The call of compiled code that runs in this thread, None outside of any."""
        return self._thread.region

    @region.setter
    def region(self, region: Any) -> None:
        self._thread.region = region

    def next_call(self) -> int:
        """A number for a call of compiled code."""
        with self._lock:
            self._compiled_calls += 1
            return self._compiled_calls

    def region_of(self, node: object) -> Any:
        """The call of compiled code to which an operator belongs; in a backward pass, that of the running node."""
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
    def compiled(self) -> CompiledStep | None:
        """The same steps with compiled code; None where nothing was compiled, or compiled code is not followed."""
        with self._lock:
            if not self.codes:
                return None
            is_whole = all(code.is_known for code in self.codes)
            return CompiledStep(
                codes=tuple(self.codes),
                queue=self._operator_log.compiled_queue(),
                fused_queue=() if is_whole else self._operator_log.fused_queue(),
                is_asked=self.compiles_modules,
                recompilations=sum(guard.recompilations for code in self.codes for guard in code.recompilations),
            )

    @property
    def peak_memory_bytes(self) -> int:
        """The most bytes that the first virtual GPU's allocator has held since the last `reset`."""
        return memory.allocator().peak

    def estimate(self, gpu: str) -> Estimate:
        """Time, GPU busy and memory of what was followed, as one step, on a GPU by its name (`steptrace.estimate`).

        Raises:
            ConfigError: there is no GPU of that name; the message names those that exist.
        """
        from steptrace.estimate.drawn import FollowedStep  # imports numpy, as nothing here needs before
        from steptrace.estimate.step import estimate_step

        prediction = Prediction.so_far(self)
        followed = FollowedStep(
            operators=prediction.operator_calls,
            syncs=prediction.total,
            queue=prediction.queue,
            peak_memory_bytes=prediction.peak_memory_bytes,
            tf32=prediction.tf32,
            tf32_convolutions=prediction.tf32_convolutions,
            compiled=[(place.file, place.line) for place in prediction.unknown if place.op == COMPILED],
        )
        return with_reasons(estimate_step(followed, gpu_named(gpu)))

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
        # Imported here, since what only counts needs neither.
        from steptrace.words.prediction import places_in_words, predicted_in_words

        prediction = predicted(self)
        if prediction.by_step:
            total = predicted_in_words(prediction, " predicted")
        else:
            total = f"{plural(self.total, 'sync')} predicted"
        return "\n".join([total, *places_in_words(prediction)])

    def by_step(self) -> tuple[int, ...]:
        """The syncs of each step that `step_ends` has told apart."""
        with self._lock:
            so_far = [0, *(sum(counts[site] for site in self._sites) for counts in self._steps)]
        return tuple(later - earlier for earlier, later in pairwise(so_far))

    def sync(self, kind: str, op: str, reason: str, count: int = 1, *, pinned: bool | None = None) -> None:
        """Record `count` syncs at the program's running line."""
        if self._thread.is_paused:
            return
        if self._thread.captured is not None:
            raise WaitInCaptureError(op, reason)
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

    def kernel(self, name: str, reason: str, tensors: Mapping[str, Tensor], written: Collection[str]) -> None:
        """Record the launch of a kernel of the program's own. The kernel itself is not run.

        Args:
            name: the kernel's language and name, such as `triton::add`.
            reason: the remark on it.
            tensors: the tensors that it gets, by the names of its parameters.
            written: the tensors that it writes to; empty if that is not known.
        """
        node = current_node()
        self.begins(list(tensors.values()), node, from_host=False, prepares=False)
        self.operator()
        self.cannot_judge(name, reason)
        if self.is_capturing:
            part = self._phase(node)
            self.capture(lambda: self._replay(part, lambda: self.kernel(name, reason, tensors, written)))
            return
        if self._thread.is_paused:
            return
        virtual = {key: tensor for key, tensor in tensors.items() if hasattr(tensor, "_inner")}
        read = [tensor for key, tensor in virtual.items() if key not in written]
        written_tensors = [tensor for key, tensor in virtual.items() if key in written]
        with self._lock:
            compiled = self._compiled_call(node)
            self._operator_log.add_kernel(
                name, read, written_tensors, self._phase(node), running_sites(node)[0], compiled, self._in_graph()
            )

    def lacks(self, reason: str) -> None:
        """Record that this PyTorch lacks something that predictions need: a remark of no line, kept by `reset`."""
        place: dict[str, Any] = dict.fromkeys((*SourceLine._fields, "code", "label"))
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
        if self._thread.is_paused or self.is_capturing:
            return
        site, _ = running_sites(node)
        with self._lock:
            compiled = self._compiled_call(node)
            in_graph = self._in_graph()
            self._operator_log.add(overload, call, virtual, result, self._phase(node), site, compiled, in_graph)
            self._waits(self._thread.coming)
        self._thread.coming = 0

    @property
    def is_capturing(self) -> bool:
        """Whether a CUDA graph captures what this thread launches: it is written into the graph, and does not run."""
        return self._thread.captured is not None and not self._thread.is_paused

    def capture_begins(self) -> None:
        """A CUDA graph captures this thread's operators from now on.

        Raises:
            RuntimeError: another one does. The message is PyTorch's.
        """
        if self._thread.captured is not None:
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        self._thread.captured = []

    def capture_ends(self) -> list[Callable[[], None]]:
        """The functions that run the captured operators once more, in their order."""
        captured, self._thread.captured = self._thread.captured, None
        return captured or []

    def capture(self, again: Callable[[], None]) -> None:
        """Note an operator that the graph captures: a function that runs it once more."""
        if self._thread.captured is not None:
            self._thread.captured.append(again)

    def captures_operator(self, again: Callable[[], None], node: object) -> None:
        """The same; the operator then counts for the part of the step that runs now."""
        part = self._phase(node)
        self.capture(lambda: self._replay(part, again))

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """A context in which operators run that a CUDA graph launches at once."""
        thread = self._thread
        before = thread.replays, thread.replayed_part
        thread.replays = thread.replay_begins = True
        try:
            yield
        finally:
            thread.replays, thread.replayed_part = before

    def _replay(self, part: str, again: Callable[[], None]) -> None:
        self._thread.replayed_part = part
        again()

    def _in_graph(self) -> bool:
        """Whether a CUDA graph launches the operator; the first one of a replay stands for the graph's own launch."""
        thread = self._thread
        first, thread.replay_begins = thread.replay_begins, False
        return thread.replays and not first

    def _compiled_call(self, node: object) -> tuple[int, int | None] | None:
        """See `OperatorLog.add`."""
        region = self.region_of(node)
        if region is None or region.code is None:
            return None
        is_backward = node is not None and self._thread.region is None
        code = self.codes[region.code]
        if code.unlowered in RUNS_UNCOMPILED:
            return None
        is_known = code.kernels is not None
        return 2 * region.serial + is_backward, FIRST_CALL - 2 * region.code - is_backward if is_known else None

    def set_stance(self, stance: Any) -> Any:
        """Set the program's stance on compiling, and return the one before."""
        before, self.stance = self.stance, stance
        return before

    def _waits(self, count: int) -> None:
        """Note that the host waits between operators; what prepares batches in another thread waits beside them."""
        thread = self._thread
        if thread.is_owner or thread.part != "data":
            self._operator_log.sync(count)

    def batch_arrives(self) -> None:
        """Note that a batch has arrived, or that a step begins: copies to the device from now on are data."""
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
        if thread.replays:
            pass
        elif node is not None or thread.in_optimizer:
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
        """Wait until the program's other threads have finished their pending work (`steptrace.predict.threads`)."""
        with self._lock:
            self._helpers = [helper for helper in self._helpers if helper.is_alive()]
            helpers = tuple(self._helpers)
        settle(helpers)

    def _phase(self, node: object) -> str:
        """The part of the step that is running."""
        if self._thread.replays:
            return self._thread.replayed_part
        if node is not None:
            return "backward"
        return "optimizer" if self._thread.in_optimizer else self._thread.part

    def operator(self) -> None:
        """Count one operator that does work on the device."""
        if self._thread.is_paused or self.is_capturing:
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
        """A context for a closure of the program inside an optimizer's step, which is no part of the optimizer."""
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
        place = dict.fromkeys((*SourceLine._fields, "code")) if site is None else {**site._asdict(), "code": site.code}
        if program is not None and program != site:
            place |= {"program_file": program.file, "program_line": program.line}
        labels = self._thread.labels
        label = labels[-1] if labels else None
        if op == "aten::index" and is_inside(SYNC_BATCH_NORM):
            label = SYNC_BATCH_NORM  # PyTorch has no label there, and the line alone does not tell what waits
        return {**place, "op": op, "label": label, "phase": self._phase(node), "count": 0, "reason": reason}


def _is_trained(tensor: Tensor) -> bool:
    """Whether a tensor is a weight, or a leaf that gets a gradient: what takes one is part of a forward pass."""
    return isinstance(tensor, torch.nn.Parameter) or (tensor.requires_grad and tensor.is_leaf)


@dataclass(frozen=True)
class Prediction:
    """A snapshot of `Syncs`. All counts are sums over all followed steps.

    `steptrace.documents.probe.Prediction` is the same for its readers.

    `batch_size` is that of a config; None for a function. `queue`: see `Syncs.queue`. `devices`: the number of GPUs
    that train together, of a config. `tf32`, `tf32_convolutions`: whether float32 products, and convolutions, may use
    TF32. `gpu`: the GPU that the program was told of.
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
    compiled: CompiledStep | None = None
    devices: int = 1
    tf32: bool = False
    tf32_convolutions: bool = True
    gpu: str = USUAL
    #: Syncs of each step, and of each before those that were followed; empty where steps are not told apart.
    by_step: tuple[int, ...] = ()
    warmup_by_step: tuple[int, ...] = ()
    #: The lines at which the program branches on a step counter.
    branches: tuple[StepBranch, ...] = ()
    #: The lines at which it waits for its step counter, and that were not taken.
    awaited: tuple[AwaitedBranch, ...] = ()

    @classmethod
    def so_far(cls, syncs: Syncs) -> "Prediction":
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
            compiled=syncs.compiled,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data, as the probe leaves it."""
        branches = [branch._asdict() for branch in self.branches]
        return {**asdict(self), "branches": branches, "awaited": [branch._asdict() for branch in self.awaited]}


def _named(place: _Counted) -> _Counted:
    program = place.program_file
    return replace(
        place,
        file=place.file and trace_file_name(place.file),
        program_file=program and trace_file_name(program),
    )


def predicted(syncs: Syncs) -> "PredictedStep":
    """The prediction so far, as prediction.json has it; counts are per step if `step_ends` was called."""
    from steptrace.documents import probe
    from steptrace.documents.base import convert
    from steptrace.documents.prediction import predicted_step

    followed = replace(Prediction.so_far(syncs), by_step=syncs.by_step())
    return predicted_step([convert(followed.to_json(), probe.Prediction)])
