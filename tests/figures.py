"""The numbers and names in a text, in order: a test asks for these and not for the sentence around them."""

import re


def figures_in(text: str) -> list[float]:
    """Every number of a text, without thousands separators; parts of names such as `bf16` do not count."""
    return [float(number.replace(",", "")) for number in re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)", text)]


def codes_in(text: str) -> list[str]:
    """What stands in backticks in a text: names, lines, settings and commands."""
    return re.findall(r"`([^`]+)`", text)


def bare_names_in(text: str) -> list[str]:
    """Names of code (`a_b`, `a.b`, `a(`) outside backticks. "torch.compile" also is the name of a feature."""
    bare = re.sub(r"`[^`]*`", "", text)
    names = re.findall(r"\w*_\w+|\b[a-z]\w+\.[a-z]\w+|\w+\(", bare)
    return [name for name in names if name != "torch.compile"]


#: The name of a file, an operator or a function at the beginning of a text, without backticks.
BARE_NAME = re.compile(r"[A-Za-z_][\w-]*(\.\w|::|_|\()")
