"""The queues of a trace run through again, with some of the host's waits gone."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from itertools import chain

from steptrace.analysis.syncs.replay_model import Queues

#: Order of what happens at the same instant on the host: a launch, a mark, a wait.
_LAUNCH, _MARK, _WAIT = 0, 1, 2


def replay(queues: Queues, gone: AbstractSet[int] = frozenset()) -> int:
    """How long all steps together take, in ns, with the synchronisations `gone` (rows of `syncs`) out of the program.

    From the first step's start on the host to the end of the last step or of the last work launched in a step,
    whichever is later. The calls of a synchronisation that is gone take no time; a copy it made stays, and nobody waits
    for it. Nothing else of the program changes.
    """
    work, waits = queues.work, queues.waits
    launch_latency, queue_latency, other_latency, length, before, other = (
        values.tolist()
        for values in (
            work.launch_latency,
            work.queue_latency,
            work.other_latency,
            work.dur,
            work.before,
            work.other,
        )
    )
    done = [0] * len(length)
    held = {entry for entry, row in enumerate(waits.rows.tolist()) if row in gone}
    own, kept, dur = waits.own_ns.tolist(), waits.kept_ns.tolist(), waits.dur.tolist()
    was = now = earliest = 0  # an instant of the host then, the same instant in the replay, and a lower bound for it
    marks = []
    for at, what, entry in _events(queues):
        time = max(now + at - was, earliest)
        if what == _LAUNCH:
            start = time + launch_latency[entry]
            if before[entry] >= 0:
                start = max(start, done[before[entry]] + queue_latency[entry])
            if other[entry] >= 0:
                start = max(start, done[other[entry]] + other_latency[entry])
            done[entry] = start + length[entry]
        elif what == _MARK:
            marks.append(time)
        else:
            earliest = time
            if entry in held:
                time += kept[entry]
            else:
                time = max(time, *(done[i] for i in waits.awaits[entry]), time) + own[entry]
            if at + dur[entry] >= was:
                was, now = at + dur[entry], time
            else:  # within the wait of another thread
                now = max(now, time)
    ends = [end for end, counted in zip(done, work.in_step.tolist(), strict=True) if counted]
    return max([marks[1], *ends]) - marks[0]


def _events(queues: Queues) -> Iterator[tuple[int, int, int]]:
    """What happens on the host, in order: time, kind, entry."""
    launches = ((at, _LAUNCH, entry) for entry, at in enumerate(queues.work.launched.tolist()))
    waits = ((at, _WAIT, entry) for entry, at in enumerate(queues.waits.start.tolist()))
    marks = ((at, _MARK, entry) for entry, at in enumerate(queues.window))
    return iter(sorted(chain(launches, waits, marks)))


def measured(queues: Queues) -> int:
    """The same time as the trace has it, in ns."""
    work = queues.work
    ends = (work.start + work.dur)[work.in_step == 1]
    return max([queues.window[1], int(ends.max()) if len(ends) else queues.window[1]]) - queues.window[0]
