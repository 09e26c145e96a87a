"""Until when certificates in PEM files are valid."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

_log = logging.getLogger("tidemq")


def certificate_ends(files: Mapping[str, str]) -> dict[str, datetime]:
    """Of the first certificate of each file, the listener's own, by its name; of those that can be read at
    this moment. What is wrong with the others is said where they are used.
    """
    try:
        from cryptography import x509  # an extra: without it nobody knows
    except ImportError:
        return {}
    found = {}
    for name, path in files.items():
        try:
            found[name] = x509.load_pem_x509_certificate(Path(path).read_bytes()).not_valid_after_utc
        except (OSError, ValueError) as error:
            _log.debug("the certificate of %s cannot be read: %s", name, error)
    return found
