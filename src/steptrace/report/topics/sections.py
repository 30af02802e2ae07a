"""The program's own labels, per step."""

from steptrace.report.topics.model import Topic

TOPIC = Topic("sections", "Labelled sections", ())
