"""A study's variants against each of them, for the page's script: a reader may choose another baseline."""

import msgspec

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison, OtherBaseline
from steptrace.report.study.model import measured


def against_each(study: Comparison) -> str:
    """JSON: the measured variants' `names`, their median step times `ms`, and `against`, null if it was not computed.

    `against[baseline][variant]` is [ratio in words, interval in words, low, high, verdict], each null where there is
    none.
    """
    times = {variant.name: variant.step_ms.median for variant in measured(study) if variant.step_ms is not None}
    document = {
        "names": list(times),
        "ms": [_short(ms) for ms in times.values()],
        "against": {found.baseline: _entries(found) for found in study.other_baselines} or None,
    }
    return msgspec.json.encode(document).decode()


def _entries(found: OtherBaseline) -> dict[str, tuple[object, ...]]:
    rows = zip(found.variants, found.ratios, found.lows, found.highs, found.verdicts, strict=True)
    return {
        name: (
            fmt.ratio(ratio, low, high),
            None if low is None else fmt.ratio_interval(low, high),
            None if low is None else _short(low),
            None if high is None else _short(high),
            verdict,
        )
        for name, ratio, low, high, verdict in rows
    }


def _short(value: float) -> float:
    """Five digits: more than the page shows."""
    return float(f"{value:.5g}")
