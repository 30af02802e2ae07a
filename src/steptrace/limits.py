"""Thresholds that several parts of steptrace share."""

from typing import Final

#: Effects, and parts of a step, below this share of it are noise unless an A/A pair of a study says otherwise.
NOISE_FLOOR: Final = 0.01
#: The same where the runs of two variants did not take turns: a program has measured 0.77 times as fast as itself when
#: it was run again later. Ours.
NOISE_FLOOR_APART: Final = 0.35
#: Profiled over unprofiled step time: above the first the trace's figures also show the profiler, from the second on
#: they show the profiler more than the program.
PROFILER_OVERHEAD: Final = 1.10
SLOW_PROFILE: Final = 2.0
#: A mean step of more than this many medians: long steps come back. Then means are compared, and stand beside medians.
LONG_STEPS: Final = 1.10
#: Fewer profiled steps than this tell nothing of how steps differ.
FEW_STEPS: Final = 3
#: From this share of a step on, idle time without a known cause is explained on a page's first screen.
UNKNOWN_IDLE: Final = 0.05
#: From these shares of the step time on, waiting for data is moderate or high (the TensorFlow Profiler's thresholds).
MODERATE_SHARE: Final = 0.05
HIGH_SHARE: Final = 0.20
#: From these shares of a step on, communication that nothing hides, and a GPU that waits for the host, are moderate or
#: high (the TensorFlow Profiler's thresholds).
OVERHEAD_MODERATE: Final = 0.03
OVERHEAD_HIGH: Final = 0.15
#: Waiting for other ranks is told apart from transfer if at most this share of the communication belongs to collectives
#: that some rank's trace lacks: a trace's first and last collectives often lie outside another rank's trace (ours).
WAITING_UNKNOWN: Final = 0.05
#: A step is host-bound where the GPU is idle for this share of it because nothing was launched: shorter GPU work hardly
#: shortens it (ours).
HOST_BOUND: Final = 0.5
#: A call longer than the first is a slow launch; a launch latency longer than the second is an excess delay; a gap of a
#: stream shorter than the third, before work that was already queued, is the GPU's own start-up. All three are Holistic
#: Trace Analysis's, whose documentation gives 30 ns for the last, but whose code compares microseconds.
SLOW_LAUNCH_NS: Final = 50_000
EXCESS_DELAY_NS: Final = 100_000
KERNEL_WAIT_BELOW_NS: Final = 30_000
#: A launch with all that leads to it, operator and Python, takes the host less: a longer call, gap, or time per launch
#: has another cause.
LONG_CALL_NS: Final = 250_000
#: Launches that CUDA lets queue up in a stream.
QUEUE_CAPACITY: Final = 1024
#: Below this share of the events at which the allocator's counter fits the recorded blocks, allocations are missing.
COUNTER_AGREES: Final = 0.99

#: Budgets and gates rest on whole periods of a training's branches on a step counter, up to so many steps.
PERIOD_JUDGED: Final = 120
