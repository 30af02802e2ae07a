"""The topics of a trace's page, in their order. To add one, write its module and template and list it here."""

from steptrace.report.trace import (
    annotations,
    collectives,
    copies,
    critical_path,
    idle,
    input,
    kernels,
    launches,
    memory,
    overview,
    program,
    quality,
    queues,
    rank_kernels,
    sections,
    sequences,
    syncs,
    time,
    timeline,
    waits,
)
from steptrace.report.trace.model import RankTopic, Topic

#: What the page says of one trace.
TOPICS: tuple[Topic, ...] = (
    overview.TOPIC,
    time.TOPIC,
    timeline.TOPIC,
    idle.TOPIC,
    input.TOPIC,
    syncs.TOPIC,
    critical_path.TOPIC,
    sections.TOPIC,
    annotations.TOPIC,
    kernels.TOPIC,
    program.TOPIC,
    sequences.TOPIC,
    collectives.TOPIC,
    launches.TOPIC,
    queues.TOPIC,
    copies.TOPIC,
    memory.TOPIC,
    quality.TOPIC,
)

#: What it says of several ranks together.
RANK_TOPICS: tuple[RankTopic, ...] = (waits.TOPIC, rank_kernels.TOPIC)
