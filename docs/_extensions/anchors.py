"""Anchors of headings as GitHub makes them, so that a link leads to the same place here and there."""

import re
import unicodedata


def slug(heading: str) -> str:
    kept = "".join(c for c in heading.lower() if c in " -_" or unicodedata.category(c)[0] in "LM" or c.isdecimal())
    return re.sub(" ", "-", kept)
