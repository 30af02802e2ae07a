"""Counts what happens on the virtual device, by place: syncs, what could not be judged, operators."""

import gc
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import Tensor

from steptrace.documents.compiled import CompiledStep
from steptrace.documents.estimate import COMPILED, Estimate, OperatorCalls
from steptrace.engine.frames import SourceLine
from steptrace.estimate.gpus import gpu_named
from steptrace.format import plural
from steptrace.predict import memory
from steptrace.predict.chosen_stream import CHOSEN, is_default
from steptrace.predict.compilation_state import CompilationState
from steptrace.predict.counted_places import Assumed, EarlyRead, PlaceCounts, Site, Unknown
from steptrace.predict.limit import WaitInCaptureError
from steptrace.predict.memory import UNFINISHED
from steptrace.predict.operator_log import OperatorLog
from steptrace.predict.operators import Overload
from steptrace.predict.places import is_inside, running_sites
from steptrace.predict.prediction import Prediction, predicted
from steptrace.predict.pytorch import current_node
from steptrace.predict.thread_state import ThreadState
from steptrace.predict.threads import Helper, settle
from steptrace.torch_names import SYNC_BATCH_NORM

if TYPE_CHECKING:
    import pandas as pd

#: The separator of an operator's namespace and its name.
_OPERATOR: Final = "::"
_READ_EARLY: Final = "copied from the device without blocking, and nothing was waited for since"


class Syncs:
    """The syncs of a prediction. `predict_syncs` yields it, and it fills while the program runs, in all its threads.

    Only one is active in a process at a time.
    """

    active: "Syncs | None" = None

    def __init__(self) -> None:
        #: The state of the running thread.
        self.thread = ThreadState(threading.get_ident())
        #: The rows by which operators are judged, a `steptrace.predict.sync_rules.SyncRules`, and the context that a
        #: thread enters to find the device. `predict_syncs` sets both.
        self.rules: Any = None
        self.modes: Callable[[], AbstractContextManager[None]] | None = None
        #: The code that the program compiles.
        self.compilation = CompilationState()
        #: Held while counts change or are read; memory that is freed meanwhile may change them in the same thread.
        self._lock = threading.RLock()
        self._helpers: list[Helper] = []
        self._places = PlaceCounts()
        self._operator_log = OperatorLog()
        if memory.allocator().live:
            gc.collect()  # or cycles of an earlier prediction would hold memory, and give it back within this one
        memory.allocator().reset_peak()
        memory.allocator().give_back()
        memory.allocator().reset_program_peak()
        self._operators_per_label: Counter[str] = Counter()
        #: All operators that do work, labelled or not. A proxy for the number of kernel launches.
        self.operator_total = 0

    @property
    def total(self) -> int:
        """Predicted syncs so far."""
        with self._lock:
            return self._places.sites.total()

    @property
    def sites(self) -> list[Site]:
        """The places of the syncs, in the order of their first occurrence.

        A line that runs in several parts of a step is one site, whose `phase` is the part with most of its syncs. Its
        backward pass is another.
        """
        with self._lock:
            return self._places.merged(self._places.sites)

    @property
    def unknown(self) -> list[Unknown]:
        """The operations that could not be judged: the total may be higher by them."""
        with self._lock:
            return self._places.merged(dict.fromkeys(self._places.notes, 1) | self._places.unknown)

    @property
    def assumed(self) -> list[Assumed]:
        """The places at which the program read a value that was not computed: later counts may differ on a GPU."""
        with self._lock:
            return self._places.merged(self._places.assumed)

    @property
    def early_reads(self) -> list[EarlyRead]:
        """The places at which the program read a non-blocking copy from the device before it waited for the copy."""
        with self._lock:
            return self._places.merged(self._places.early_reads)

    def step_ends(self) -> None:
        """Note that a step has ended: what was counted since the last one, or since `reset`, is this step's."""
        with self._lock:
            self._places.step_ends()

    def by_step(self) -> tuple[int, ...]:
        """The syncs of each step that `step_ends` has told apart."""
        with self._lock:
            return self._places.syncs_by_step()

    def copied_before(self) -> int:
        """The number of syncs before the forward pass so far: of a batch's copies, and of a first step's set-up."""
        with self._lock:
            return self._places.syncs_of_data()

    @property
    def operators_per_label(self) -> dict[str, int]:
        """Operators that do work (not mere views), per `record_function` label; nested ones in both."""
        with self._lock:
            return dict(self._operators_per_label)

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
            log = self._operator_log
            return self.compilation.step(queue=log.compiled_queue(), fused_queue=log.fused_queue())

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
        from steptrace.words.estimate import with_reasons

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
        # Imported here, since what only counts needs no words.
        from steptrace.words.prediction import places_in_words, predicted_in_words

        prediction = predicted(self)
        if prediction.by_step:
            total = predicted_in_words(prediction, " predicted")
        else:
            total = f"{plural(self.total, 'sync')} predicted"
        return "\n".join([total, *places_in_words(prediction)])

    def __repr__(self) -> str:
        return f"<Syncs: {self.total}>"

    def sync(self, kind: str, op: str, reason: str, count: int = 1, *, pinned: bool | None = None) -> None:
        """Record `count` syncs at the program's running line."""
        if self.thread.is_paused:
            return
        if self.thread.is_capturing:
            raise WaitInCaptureError(op, reason)
        site = Site(**self._place(op, reason), kind=kind, pinned=pinned)
        UNFINISHED.clear()  # what was copied before is there now
        with self._lock:
            self._places.sites[site] += count
            if _OPERATOR in op:
                self.thread.pending_syncs += count
            else:
                self._waits(count)

    def reads(self, op: str, tensors: Iterable[Tensor]) -> None:
        """Look whether the host reads, of these tensors in its memory, one that is still being copied there."""
        early = [tensor for tensor in tensors if tensor in UNFINISHED]
        if not early or self.thread.is_paused:
            return
        for tensor in early:
            UNFINISHED.discard(tensor)  # one remark for a copy
        place = EarlyRead(**self._place(op, _READ_EARLY))
        with self._lock:
            self._places.early_reads[place] += 1

    def cannot_judge(self, op: str, reason: str) -> None:
        """Record that the syncs of an operation are not known."""
        if self.thread.is_paused:
            return
        place = Unknown(**self._place(op, reason))
        with self._lock:
            self._places.unknown[place] += 1

    def assume(self, op: str, reason: str) -> None:
        """Record that something read here was not computed."""
        if self.thread.is_paused:
            return
        place = Assumed(**self._place(op, reason))
        with self._lock:
            self._places.assumed[place] += 1

    def lacks(self, reason: str) -> None:
        """Record that this PyTorch lacks something that predictions need: a remark of no line, kept by `reset`."""
        with self._lock:
            self._places.note(f"PyTorch {torch.__version__}", reason)

    def begins(self, tensors: Sequence[Tensor], node: object, *, from_host: bool, prepares: bool) -> None:
        """An operator or kernel is about to run on the device.

        Args:
            tensors: what it is given.
            node: the running autograd node, or None.
            from_host: whether it copies a tensor of the host to the device.
            prepares: whether it is a view, or works in place, as what prepares a batch or sets gradients to zero.
        """
        thread = self.thread
        if thread.helper is None and not thread.is_owner:
            thread.helper = Helper()
            with self._lock:
                self._helpers.append(thread.helper)
        thread.begins(tensors, node, from_host=from_host, prepares=prepares)

    def operator(self) -> None:
        """Count one operator that does work on the device."""
        if self.thread.is_paused or self.thread.is_capturing:
            return
        with self._lock:
            self.operator_total += 1
            for label in self.thread.running:
                self._operators_per_label[label] += 1

    def ran(self, overload: Overload, call: tuple[Any, Any], virtual: Sequence[Any], result: Any, node: object) -> None:
        """Record an operator that has run on the first virtual GPU.

        Args:
            overload: the operator.
            call: its arguments, by position and by name.
            virtual: the tensors of the device among them.
            result: what it has returned.
            node: the running autograd node, or None.
        """
        thread = self.thread
        if thread.is_paused or thread.is_capturing:
            return
        site, _ = running_sites(node)
        with self._lock:
            compiled = self._compiled_pass(node)
            in_graph = thread.is_launched_by_graph()
            self._operator_log.add(
                overload,
                call,
                virtual,
                result,
                thread.phase(node),
                site,
                compiled,
                in_graph,
                other_stream=not is_default(CHOSEN.streams.get(0)),
            )
            self._waits(thread.pending_syncs)
        thread.pending_syncs = 0

    def kernel(self, name: str, reason: str, tensors: Mapping[str, Tensor], written: Collection[str]) -> None:
        """Record the launch of a kernel of the program's own. The kernel itself is not run.

        Args:
            name: the kernel's language and name, such as `triton::add`.
            reason: the remark on it.
            tensors: the tensors that it gets, by the names of its parameters.
            written: the tensors that it writes to; empty if that is not known.
        """
        thread = self.thread
        node = current_node()
        self.begins(list(tensors.values()), node, from_host=False, prepares=False)
        self.operator()
        self.cannot_judge(name, reason)
        if thread.is_capturing:
            thread.capture(lambda: self.kernel(name, reason, tensors, written), node)
            return
        if thread.is_paused:
            return
        virtual = {key: tensor for key, tensor in tensors.items() if hasattr(tensor, "_inner")}
        read = [tensor for key, tensor in virtual.items() if key not in written]
        written_tensors = [tensor for key, tensor in virtual.items() if key in written]
        with self._lock:
            compiled = self._compiled_pass(node)
            in_graph = thread.is_launched_by_graph()
            site, _ = running_sites(node)
            self._operator_log.add_kernel(name, read, written_tensors, thread.phase(node), site, compiled, in_graph)

    def copies_beside(self) -> int:
        """The number of copies between host and GPU that were launched on other streams than the default one."""
        with self._lock:
            return self._operator_log.copies_beside

    def wait_for_copies(self, copies: int) -> None:
        """The default stream waits for the first `copies` of these copies."""
        with self._lock:
            if copies and not self.thread.is_paused and not self.thread.is_capturing:
                self._operator_log.add_wait_for_copies(copies)

    def copies_wait(self) -> None:
        """Later copies on other streams wait for what was launched on the default stream so far."""
        with self._lock:
            if not self.thread.is_paused and not self.thread.is_capturing:
                self._operator_log.add_copies_wait()

    def next_call(self) -> int:
        """A number for a call of compiled code."""
        with self._lock:
            return self.compilation.next_call()

    def settle(self) -> None:
        """Wait until the program's other threads have finished their pending work (`steptrace.predict.threads`)."""
        with self._lock:
            self._helpers = [helper for helper in self._helpers if helper.is_alive()]
            helpers = tuple(self._helpers)
        settle(helpers)

    def reset(self) -> None:
        """Forget all counts, as after a warm-up step."""
        with self._lock:
            self._places.clear()
            self._operators_per_label.clear()
            self._operator_log.clear()
            memory.allocator().reset_peak()
            self.operator_total = 0
        self.thread.pending_syncs = 0

    def _waits(self, count: int) -> None:
        """Note that the host waits between operators."""
        if self.thread.holds_up_training:
            self._operator_log.sync(count)

    def _compiled_pass(self, node: object) -> tuple[int, int | None] | None:
        """The pass of compiled code that a running operator belongs to; see `OperatorLog.add`."""
        is_backward = node is not None and self.thread.region is None
        return self.compilation.pass_of(self.thread.region_of(node), is_backward=is_backward)

    def _place(self, op: str, reason: str) -> dict[str, Any]:
        """The fields of a `CountedPlace` at the program's running line, not counted yet."""
        node = current_node()
        site, program = running_sites(node)
        place = dict.fromkeys((*SourceLine._fields, "code")) if site is None else {**site._asdict(), "code": site.code}
        if program is not None and program != site:
            place |= {"program_file": program.file, "program_line": program.line}
        label = self.thread.label
        if op == "aten::index" and is_inside(SYNC_BATCH_NORM):
            label = SYNC_BATCH_NORM  # PyTorch has no label there, and the line alone does not tell what waits
        return {**place, "op": op, "label": label, "phase": self.thread.phase(node), "count": 0, "reason": reason}
