"""The one place of a step without a line of the program that everybody can name: where a batch goes to the device.

The training loop is the pipeline's, so no frame of the program is on the stack there; its labels tell.
"""

from typing import Final, Protocol

#: What a page and a message call it.
BATCH_COPY: Final = "the loop's copy of the batch"
#: The labels of the loop: of the whole part, and of the copy alone.
_LABELS: Final = ("data", "copy data")


class Site(Protocol):
    """What tells the copy from other places: a sync site of any document, or of a page."""

    @property
    def file(self) -> str | None:
        """File of the program, if a line is known."""

    @property
    def label(self) -> str | None:
        """Innermost `record_function` label."""

    @property
    def kind(self) -> str | None:
        """What waits."""


def is_batch_copy(site: Site) -> bool:
    """Whether a sync site is that copy: a copy to the device under the loop's label, without a line of the program."""
    return site.file is None and site.label in _LABELS and site.kind == "h2d_copy"
