"""Snakemake's messages that are known by their text, since no event and no field of the record tells them from others.

Seen in Snakemake 9.27.1. A test holds each of them to the source of the installed Snakemake: where a release says
something else, the test fails, and the message is then shown, or left out, like any other.

What a record does say is used instead: its event, its level, the type of its exception.
"""

from typing import Final

#: Messages below a warning that are shown, by how they begin: nothing had to be made, the end of `--unlock`, the first
#: Ctrl-C, a job that is tried again.
SHOWN: Final = ("Nothing to be done", "Unlock", "Will exit", "Trying to restart")
#: Errors that repeat that a job has failed, which is already printed with its reason, by how they begin.
REPEATED: Final = (
    "Exiting because a job execution failed",
    "WorkflowError:\nAt least one job did not complete",
)
