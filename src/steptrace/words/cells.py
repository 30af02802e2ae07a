"""The cells of a matrix in words."""

from collections.abc import Mapping


def cell_words(cell: Mapping[str, str]) -> str:
    """The values of a cell, each after its key: "batch_size 2, precision bf16"."""
    return ", ".join(f"{last_name(key)} {value}" for key, value in cell.items())


def last_name(key: str) -> str:
    """The key without its group: `batch_size` of `data.batch_size`."""
    return key.rpartition(".")[2]
