"""The section "What the source states": numbers of the study's source, with our counts beside them."""

from typing import Final

from steptrace import format as fmt
from steptrace.documents.comparison import CheckedClaim, Comparison
from steptrace.report.page.markup import Html, breakable, inline_code
from steptrace.report.page.table import text_table

_HOW: Final = {"measured": "in profiled steps", "predicted": "operators, predicted", None: ""}


def claims(study: Comparison) -> Html | None:
    """The numbers that a study's source states beside those counted here; None for a study without such claims."""
    if not study.claims:
        return None
    rows = [
        (inline_code(claim.says), claim.source, breakable(claim.variant), fmt.count(claim.kernels), _counted(claim))
        for claim in study.claims
    ]
    return text_table(("The source states", "Source", "Variant", "Stated", "Counted here, per step"), rows)


def _counted(claim: CheckedClaim) -> str:
    return fmt.NOT_MEASURED if claim.counted is None else f"{fmt.count(claim.counted)} {_HOW[claim.basis]}"
