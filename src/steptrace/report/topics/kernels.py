"""Which kernels the GPU's time went to."""

from steptrace.report.topics.model import Topic

#: How many kernels the page lists; summary.json has all.
MOST_KERNELS = 25

TOPIC = Topic("kernels", "Kernels", (), data=lambda _: {"most_kernels": MOST_KERNELS})
