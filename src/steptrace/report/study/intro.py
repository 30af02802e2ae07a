"""The top of a study's page: title, question, the result in one sentence, and a few facts."""

from collections.abc import Sequence

from steptrace import format as fmt
from steptrace.documents.comparison import Comparison
from steptrace.report.page.markup import Html, render
from steptrace.report.study import headline
from steptrace.report.study.model import measured, runs_ok, title


def intro(study: Comparison) -> Html:
    """Title, question, the result in one sentence, what and where in a few facts, and the study's text."""
    runs = [runs_ok(variant) for variant in measured(study)]
    steps = [variant.step_ms.steps for variant in measured(study) if variant.step_ms is not None]
    environment = study.environment
    facts = [
        ("Scale", study.scale),
        ("Machine", machine(study)),
        ("Variants", fmt.count(len(study.variants))),
        ("Runs per variant", _span(runs) if runs else fmt.NOT_MEASURED),
        ("Timed steps per variant", _span(steps) or fmt.NOT_MEASURED),
        ("PyTorch", environment.torch if environment is not None else None),
        ("Commit", commit(study)),
    ]
    return render(
        "study/intro",
        study=study,
        title=title(study),
        paragraphs=paragraphs(study.text),
        headline=headline.summary(study),
        tone=headline.tone(study),
        facts=[(name, value) for name, value in facts if value],
    )


def paragraphs(text: str) -> tuple[str, ...]:
    """A text's paragraphs: blank lines part them, single line breaks do not."""
    blocks = text.replace("\r\n", "\n").split("\n\n")
    return tuple(" ".join(block.split()) for block in blocks if block.strip())


def machine(study: Comparison) -> str | None:
    """The GPU, or the CPU where there is none."""
    environment = study.environment
    if environment is None:
        return None
    if environment.gpu:
        count = environment.gpu_count
        return f"{count} × {environment.gpu}" if count > 1 else environment.gpu
    return f"{environment.cpu}, no GPU"


def commit(study: Comparison) -> str | None:
    """The commit in short, with a word on uncommitted changes."""
    environment = study.environment
    if environment is None or environment.git_commit is None:
        return None
    return environment.git_commit[:10] + (" with uncommitted changes" if environment.git_dirty else "")


def _span(values: Sequence[int]) -> str:
    if not values:
        return ""
    low, high = min(values), max(values)
    return fmt.count(low) if low == high else f"{fmt.count(low)} to {fmt.count(high)}"
