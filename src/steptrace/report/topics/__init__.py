"""The topics of a trace's page, in their order. To add one, write its module and template and list it here."""

from steptrace.report.topics import idle, kernels, sections, syncs, time
from steptrace.report.topics.model import RankTopic, Topic

#: What the page says of one trace.
TOPICS: tuple[Topic, ...] = (time.TOPIC, idle.TOPIC, syncs.TOPIC, sections.TOPIC, kernels.TOPIC)

#: What it says of several ranks together.
RANK_TOPICS: tuple[RankTopic, ...] = ()

__all__ = ["RANK_TOPICS", "TOPICS", "RankTopic", "Topic"]
