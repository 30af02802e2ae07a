"""What the figures of a page mean, in short: the page prints these words beside the figures.

`DEFINITIONS` maps a key to a term and its meaning; the `*_TERMS` tuples say which of them a section explains.
"""

from dataclasses import dataclass

from steptrace.documents.step_figures import STEP_FIGURES


@dataclass(frozen=True)
class Definition:
    """A term as the page shows it and one or two sentences on what it means.

    `whole` is what the page of a trace without steps shows instead, where the words speak of steps.
    """

    term: str
    meaning: str
    whole: "Definition | None" = None

    def of(self, *, steps: bool) -> "Definition":
        """The definition for a trace that marks steps, or for one that does not."""
        return self if steps or self.whole is None else self.whole


DEFINITIONS: dict[str, Definition] = {
    **{figure.key: Definition(figure.name, figure.definition) for figure in STEP_FIGURES},
    "step_time": Definition(
        "Step time",
        "Median over unprofiled steps: CUDA events on a GPU, the monotonic clock on a CPU. The only source of a claim "
        "about speed. p95 is the time that 95 % of the steps stay under.",
    ),
    "ratio": Definition(
        "Ratio",
        "Median of the baseline divided by the median of the variant: above 1 is faster. The interval carries the "
        "variance between runs as well as within them.",
    ),
    "verdict": Definition(
        "Verdict",
        "Faster or slower only if the interval excludes 1 and the effect exceeds the noise floor; same only if the "
        "whole interval lies within the floor, and the floor is at most 10 %; otherwise undecided. A claim must also "
        "survive a correction for the number of variants. One run gives no verdict.",
    ),
    "noise_floor": Definition(
        "Noise floor",
        "The smallest effect that counts: 1 %, or, where a study runs its baseline twice, the far end of the interval "
        "of that pair's ratio.",
    ),
    "syncs": Definition(
        "Syncs per step",
        "Host operations inside a step after which the host goes on only once queued GPU work is complete. Measured "
        "in the trace of a GPU run; predicted without a GPU by following the step on a virtual device.",
        Definition(
            "Syncs",
            "Host operations after which the host goes on only once queued GPU work is complete. The trace marks no "
            "steps: all of it counts.",
        ),
    ),
    "nvml": Definition(
        "NVML utilisation",
        "The figure that nvidia-smi shows, sampled during the unprofiled steps: the share of sampling periods with "
        "any kernel running. High does not mean well used.",
    ),
    "equivalence": Definition(
        "Equivalence",
        "Loss, its gradient by the predictions, the predictions, and the gradient by the parameters, each compared on "
        "shared values and fixed seeds with a float64 reference of the study. A variant outside what its number format "
        "and sizes allow differs: it computes something else.",
    ),
    "profiled": Definition(
        "Profiled / unprofiled",
        "Step time in the profiled window over the unprofiled one. Above 1.10 the trace figures describe a step that "
        "the profiler has changed.",
    ),
    "parts_host": Definition(
        "Where a step goes",
        "Host time between the labels that the training loop sets around the parts of a step; what none of "
        "them covers is other.",
    ),
    "blocked": Definition(
        "Host blocked",
        "Time of the host, which it spends inside the waiting call, per step; the GPU may be busy meanwhile.",
        Definition("Host blocked", "Time the host spends inside the waiting call."),
    ),
    "exposed": Definition(
        "Exposed GPU idle",
        "GPU idle time from the start of the sync to the first GPU work launched after it, per step. A long block "
        "with none of it costs nothing.",
        Definition(
            "Exposed GPU idle",
            "GPU idle time from the start of the sync to the first GPU work launched after it. A long block with none "
            "of it costs nothing.",
        ),
    ),
    "site": Definition(
        "Site",
        "First Python frame that belongs neither to PyTorch nor to the pipeline, with the innermost operator and "
        "label. A sync in backward points to the forward line it stems from.",
    ),
    "loader_wait": Definition(
        "Loader wait", "Host time spent waiting for the loader's next batch, mean over unprofiled steps."
    ),
    "input_wait": Definition(
        "Waiting for data",
        "Host time in the loader's next-batch call. Against a step counts the part of it in which the GPU had nothing "
        "to do; without a GPU all of it.",
    ),
    "input_bound": Definition(
        "Input-bound",
        "Moderately if waiting for data counts for 5 % of the step time or more, highly from 20 % on: the thresholds "
        "of the TensorFlow Profiler.",
    ),
    "input_parts": Definition(
        "Parts of loading",
        "From a pass of its own over some batches, timed where the work is done; medians per batch. Fetch is the time "
        "in the data set without its transform, collate makes a batch of samples, pin copies it to pinned memory, copy "
        "to the device. With workers they run beside the step and beside each other: only the wait costs.",
    ),
    "batch_bytes": Definition(
        "Inputs and targets copied", "Bytes of the tensors of one batch, in the form in which they are copied."
    ),
    "synchronised": Definition(
        "Section, each by itself",
        "Host time from one device synchronisation to the next, median over the steps of a pass of its own. It puts "
        "each cost where it is caused, and makes the step slower than a real one.",
    ),
    "idle_cause": Definition(
        "Cause of idle",
        "Time of the GPU, not of the host. Each idle gap of a device has one: held up by a sync (the host was blocked "
        "in one when the GPU ran dry, or for half of the gap), waiting for the loader, waiting for the host to launch, "
        "a stream or event dependency, or unknown; tested in this order. A gap that ends with work launched before the "
        "sync began is not the sync's.",
    ),
    "host_bound": Definition(
        "Host-bound, launch-bound",
        "Host-bound: for 3 % of the time or more the GPU waits for the host, which has launched nothing. Launch-bound: "
        "the same with short kernels in close order, where the host spends at least half of that time in calls into "
        "the GPU's runtime. Of such time the host is in a call, in an operator outside of calls, or in neither, which "
        "is Python; the three add up.",
    ),
    "window": Definition(
        "Parts of the step",
        "All profiled steps as one window, from the first one's start to the end of the last one's work, over their "
        "number. Idle time has one cause at each instant; the rest is as in the section above.",
    ),
    "residual": Definition(
        "Residual",
        "What the parts leave of the measured difference: the profiler slows one variant more than the other, and "
        "parts are means where a step time is a median.",
    ),
    "difference": Definition(
        "Interval of a part",
        "Of the difference between the means over runs (Welch's t interval): it carries the variance between runs. One "
        "run on either side has none.",
    ),
    "ceiling": Definition(
        "At most",
        "The ceiling of what removing a site's waits can save: the time the host was blocked in them, and not more "
        "than the busiest stream was idle from their start until a later wait by which all work launched was done.",
    ),
    "saved": Definition(
        "Saved without it",
        "All steps together without the site's waits, by what depends on what on the host and its streams, kernels "
        "taking as long as they did. One site gone often moves its wait to the next, so sites can save nothing alone "
        "and much together. Not said where a stream of the trace ran several activities at once.",
    ),
    "whatif": Definition(
        "What-if",
        "The baseline's unprofiled step time, times the replayed ratio without the sites that a variant does away "
        "with. It knows nothing of what else the variant computes.",
    ),
    "step_window_gpu": Definition(
        "Where a step goes",
        "All profiled steps as one window, over their number: each instant counts once, as computation, as a copy or "
        "communication that no computation hides, or as idle time by its cause. The parts add up to the bar.",
        Definition(
            "Where the time goes",
            "The GPU's span, from its first to its last work: each instant counts once, as computation, as a copy or "
            "communication that no computation hides, or as idle time by its cause. The parts add up to the bar.",
        ),
    ),
    "device_compute": Definition(
        "Device compute",
        "Share of the profiled step in which the GPU runs a compute kernel.",
        Definition("Device compute", "Share of the GPU's span in which it runs a compute kernel."),
    ),
    "placement": Definition(
        "Operators on the GPU",
        "Of the operators that compute or copy something, those that launched work on the GPU themselves. Views and "
        "allocations, which touch no element, are left out. A program calls other numbers of operators than "
        "these. By time: GPU time of what operators launched, and host time of those that stay on the host.",
    ),
    "own_host_time": Definition(
        "Own host time",
        "Time that the host spends in the operator itself, launching included, without the operators that it calls. "
        "Operators that launch GPU work have it too: it is another figure than the host time without GPU work.",
    ),
    "number_format": Definition(
        "16-bit, 32-bit, unknown",
        "Shares of the compute kernels' time by the narrowest floating-point format that a kernel's name gives, or, "
        "where the name is silent, its operator's input types. bfloat16 is 16-bit; TF32 is 32-bit. What neither tells "
        "is unknown.",
    ),
    "tensor_core": Definition(
        "Tensor cores",
        "Of the kernel time of matrix products, convolutions and attention, the share of kernels that by their name "
        "run on tensor (or matrix) cores.",
    ),
    "step_picture": Definition(
        "Picture of a step",
        "The profiled step of median time. All that ran in its time is drawn, whichever step launched it. The profiler "
        "makes it longer than an unprofiled step.",
        Definition(
            "Picture of the trace",
            "From the first event to the last, on host and GPU; the GPU's span within it can be far shorter.",
        ),
    ),
    "low_box": Definition(
        "Low box",
        "Several events of one kind, each too short to be seen. Its height is the share of its length that they fill.",
    ),
    "wait_band": Definition(
        "Pale band",
        "A sync, through all lanes: the host goes on at its end. Its cost is the idle time below it and the time until "
        "the next launch reaches the GPU.",
    ),
    "peak_allocated": Definition(
        "Peak allocated",
        "The most bytes of live blocks at any instant of the profiled window, by the allocators' events, with what was "
        "held before it: by the allocator's counter on a GPU, by the run's own count of its tensors on a CPU. What a "
        "library takes by itself, or a loader worker shares, is not seen. Reserved is what the allocator holds of the "
        "device.",
    ),
    "memory_category": Definition(
        "Category",
        "A block released in the part of the step that allocated it is temporary (so is what checkpointing computes "
        "again). Others go by that part: data: inputs; forward and loss: activations; backward: gradients; optimizer: "
        "optimizer state. What was there before the window is divided by the run's count, the rest unknown.",
    ),
    "headroom": Definition(
        "Capacity and headroom",
        "Capacity is the device's memory, on a CPU the machine's, or what scale.memory_limit_mb grants. Headroom is "
        "capacity less the peak: the reserved one where there is a cache.",
    ),
    "fragmentation": Definition(
        "Fragmentation",
        "1 - largest free block / free bytes of the caching allocator, at the end of a step's forward pass. A CPU's "
        "allocator keeps no free blocks, so there is none.",
    ),
    "memory_fit": Definition(
        "Largest batch",
        "A line through the peaks at two or more batch sizes, all else equal: peak = fixed + per sample x batch. The "
        "largest batch is what of it fits the capacity; the residual is the largest relative distance of a measured "
        "peak from the line. The command find-batch verifies it by training with it.",
    ),
    "finding_cost": Definition(
        "Saves at most",
        "What a perfect remedy could save of a profiled step: a ceiling, no forecast; at most what the trace's "
        "critical path would be shorter by without all work of the kind. Findings are ranked by it, those of a trace "
        "by severity first; errors lead, and predicted syncs follow right after high costs. Costs do not add up, since "
        "one instant can have several causes, and removing one may bring the next to light. A share is of the step, or "
        "of the whole trace where it marks no steps.",
    ),
}

TABLE_TERMS = (
    "step_time",
    "ratio",
    "verdict",
    "noise_floor",
    "syncs",
    "gpu_busy_pct",
    "sm_weighted_pct",
    "nvml",
    "equivalence",
    "profiled",
)
SYNC_TERMS = ("syncs", "site", "blocked", "exposed")
WATERFALL_TERMS = {"gpu": ("window", "idle_cause", "residual", "difference"), "host": ("residual", "difference")}
PRICE_TERMS = ("blocked", "exposed", "saved", "ceiling", "whatif")
INPUT_TERMS = ("input_wait", "input_bound", "input_parts")
LAUNCH_TERMS = (*(figure.key for figure in STEP_FIGURES if figure.needs_steps), "batch_bytes")
TIMELINE_TERMS = ("step_picture", "low_box", "wait_band", "idle_cause")
MEMORY_TERMS = ("peak_allocated", "memory_category", "headroom", "fragmentation")


def definitions(keys: tuple[str, ...]) -> tuple[Definition, ...]:
    """The definitions of these keys in their order."""
    return tuple(DEFINITIONS[key] for key in keys)
