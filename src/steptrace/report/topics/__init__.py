"""The topics of a trace's page, in their order. To add one, write its module and template and list it here."""

from steptrace.report.topics import (
    annotations,
    collectives,
    copies,
    idle,
    kernels,
    launches,
    quality,
    queues,
    rank_kernels,
    sections,
    syncs,
    time,
    waits,
)
from steptrace.report.topics.model import RankTopic, Topic

#: What the page says of one trace.
TOPICS: tuple[Topic, ...] = (
    time.TOPIC,
    idle.TOPIC,
    syncs.TOPIC,
    sections.TOPIC,
    annotations.TOPIC,
    kernels.TOPIC,
    collectives.TOPIC,
    launches.TOPIC,
    queues.TOPIC,
    copies.TOPIC,
    quality.TOPIC,
)

#: What it says of several ranks together.
RANK_TOPICS: tuple[RankTopic, ...] = (waits.TOPIC, rank_kernels.TOPIC)

__all__ = ["RANK_TOPICS", "TOPICS", "RankTopic", "Topic"]
