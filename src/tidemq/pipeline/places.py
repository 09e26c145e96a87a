"""Where tables, dumps and results lie: a path or a URI."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit


def place_uri(place: str) -> str:
    """The URI of a path, relative ones from here; a URI as it is, without a slash at its end."""
    return (place if urlsplit(place).scheme else Path(place).absolute().as_uri()).rstrip("/")
