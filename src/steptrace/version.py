"""The version of this package. It stands apart from `steptrace` itself, whose names lead to most of the modules."""

from typing import Final

#: As `version` of pyproject.toml.
VERSION: Final = "0.1.0"
