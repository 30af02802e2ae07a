"""docs/gpu-results.md, put together from the folders of reports/reference."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from steptrace.reference import kernels, studies
from steptrace.reference.load import Results, read_results

_INTRODUCTION: Final = """# Results on GPUs

Made by `make gpu-results` from the folders of `reports/reference`, which `make gpu-evidence` collects; nothing here is
typed by hand. Steps are unprofiled unless a column says otherwise; a gain is the baseline's step over the variant's,
with its 95 % interval over runs and its verdict. What the words mean stands in `docs/metrics.md` and beside each figure
of the pages in those folders. What was not measured is said to be, and counts for nothing.
"""
_NOT_OF_A_GPU: Final = (
    "> **Not a GPU's results.** They come from a rehearsal without one, which shows that the tables are made. Its\n"
    "> figures say nothing about the claims, and are not to be committed.\n"
)
_SECTIONS: Final = (
    ("Masked segmentation loss", (studies.masked_steps, studies.masked_claims)),
    ("GIoU: copy, forward, loss", (studies.giou_sections, studies.giou_differences)),
    ("GIoU: memory", (studies.giou_memory,)),
    ("GIoU: where skipping padding pays", (studies.conditional,)),
    ("GIoU: the fused operator, as asked", (kernels.required,)),
    ("GIoU: every implementation", (kernels.kernel_tables,)),
    ("GIoU: what bounds the kernels", (kernels.counters,)),
    ("Predictions of syncs, judged", (studies.predictions,)),
    ("Steps foretold without their syncs", (studies.what_if,)),
    ("The same answer", (studies.equivalence,)),
    ("What measuring costs", (studies.overheads, kernels.capture_cost, studies.profiled_steps)),
)


def render(folders: Sequence[Path]) -> str:
    """The page, as Markdown, of one or more machines.

    Raises:
        RecordError: a folder is none that `steptrace.evidence.collect` made.
    """
    return "\n".join([_INTRODUCTION, *(_machine(read_results(folder)) for folder in folders)])


def _machine(results: Results) -> str:
    facts = {name: results.environment.get(name) for name in ("torch", "cuda", "driver", "python", "cpu", "git_commit")}
    known = ", ".join(f"{name} {value}" for name, value in facts.items() if value is not None)
    parts = [f"## {results.machine}\n", f"{known}.\n"]
    if not results.environment.get("gpu"):
        parts.append(_NOT_OF_A_GPU)
    parts += [f"- {reason}\n" for reason in results.left_out]
    for heading, tables in _SECTIONS:
        parts += [f"### {heading}\n", *(text for make in tables if (text := make(results)))]
    return "\n".join(parts)
