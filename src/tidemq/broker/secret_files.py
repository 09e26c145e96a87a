"""Files with secrets that others can read, or that the broker cannot read again: said at the start."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path

from tidemq.config import Config

_log = logging.getLogger("tidemq")


def secret_files(config: Config) -> list[Path]:
    """What the configuration names that holds secrets."""
    named = [config.admin_token_file, config.admin_key or config.admin_cert]
    options = [(config.authenticator, config.authenticator_options)]
    for listener in config.listeners:
        options.append((listener.authenticator or "", listener.authenticator_options))
        if listener.tls is not None:
            named.append(str(listener.tls.key or listener.tls.cert))
            named += [str(each.key or each.cert) for each in listener.tls.certificates]
    named += [str(each.get("file", "")) for name, each in options if name == "password_file"]
    return [Path(name) for name in named if name]


def warn_of(paths: Iterable[Path]) -> None:
    """One line of the log for each file that is not as it should be, with what mends it."""
    for path in paths:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            mode = 0
        if mode & stat.S_IRWXO:
            _log.warning(
                "%s has secrets, and every user may open it (mode %04o): chmod o= %s", path, mode, path
            )
        if not os.access(path, os.R_OK):
            text = "%s cannot be read by user %d any more: what changes there counts from the next start on"
            _log.warning(text, path, os.geteuid())
