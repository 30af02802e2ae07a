"""`quality`: what a reader should know before trusting a trace's figures."""

from steptrace.analysis.common.analysis import Analysis
from steptrace.documents.rows import QualityCheck
from steptrace.documents.summary import Quality


def quality(analysis: Analysis) -> Quality:
    """The steps counted, the share of GPU work with a known launch, every check, and the warnings of those that fail.

    A note of the reader (events without times, negative lengths, categories not read) is a warning too.
    """
    trace, checks = analysis.trace, analysis.tables["quality_checks"]
    failed = checks[checks["warns"].to_numpy(dtype=bool)]
    return Quality(
        steps=len(trace.steps),
        launch_coverage=float(trace.kernels["launch"].notna().mean()) if len(trace.kernels) else None,
        warnings=(*trace.meta.notes, *failed["says"]),
        checks=analysis.rows("quality_checks", QualityCheck),
    )
