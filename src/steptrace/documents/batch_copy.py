"""The one place of a step without a line of the program that everybody can name: where a batch goes to the device.

The training loop is the pipeline's, so no frame of the program is on the stack there; its labels tell.
"""

from typing import Final

from steptrace.documents.comparison.syncs import PredictedSite, SyncChange
from steptrace.documents.summary import SyncSite

#: What a page and a message call it.
BATCH_COPY: Final = "the loop's copy of the batch"
#: The labels of the loop: of the whole part, and of the copy alone.
_LABELS: Final = ("data", "copy data")


def is_batch_copy(site: PredictedSite | SyncChange | SyncSite) -> bool:
    """Whether a sync site is that copy: a copy to the device under the loop's label, without a line of the program."""
    return site.file is None and site.label in _LABELS and site.kind == "h2d_copy"
