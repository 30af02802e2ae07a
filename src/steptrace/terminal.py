"""Text from others on a terminal: a trace, a log or a file's name must not move the cursor or hide what follows."""

import re
from typing import Final

#: Control characters but tab and line feed, and those that reverse text's direction.
_COMMANDS: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with every character that commands a terminal written as its escape, such as `\\x1b`."""
    return _COMMANDS.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
