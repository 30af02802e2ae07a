"""What tables on pages show in the place of codes."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from steptrace.words.quality import TITLES

if TYPE_CHECKING:
    from steptrace.documents.roofline import SlowCause

#: Likely causes of slow calls.
SLOW_CAUSES: Final[Mapping["SlowCause", str]] = {
    "misaligned_sizes": "sizes no multiple of 8",
    "strided_inputs": "strided inputs",
    "small_calls": "too little work per call",
    "few_blocks": "few blocks",
}
#: The words for the codes of a column, by the type of its rows and its name.
_OF_COLUMNS: Final[Mapping[tuple[str, str], Mapping[str, str]]] = {
    ("QualityCheck", "check"): {str(code): title for code, title in TITLES.items()},
    ("OperatorRoofline", "because"): {str(code): cause for code, cause in SLOW_CAUSES.items()},
}


def words_of_column(row_type: str, column: str) -> Mapping[str, str]:
    """The words for the codes of a column; empty for a column without codes.

    Args:
        row_type: the name of the type of the rows.
        column: the column's name.
    """
    return _OF_COLUMNS.get((row_type, column), {})
