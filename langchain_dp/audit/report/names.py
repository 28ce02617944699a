"""Which names a report shows. Names are public by contract, but a caller may have passed a sentence by mistake."""

from __future__ import annotations

import re

_PLAIN = re.compile(r"[\w.:/+()#=@, -]{1,48}")
_WORDS = 4


def label(name: str) -> str:
    """The name if it reads like a label, else what is said of it instead.

    At most 48 letters, digits and plain marks in at most four words without a digit. What looks like a path is cut to
    its last part, since folders may be named after people.
    """
    last = re.split(r"[/\\]", name.rstrip("/\\"))[-1] if name.count("/") + name.count("\\") > 1 else name
    words = [word for word in last.split() if not any(letter.isdigit() for letter in word)]  # sizes, hashes are not
    if _PLAIN.fullmatch(last) and len(words) <= _WORDS:
        return last
    return f"(a name of {len(name)} characters that reads like a text: not shown)"
