"""Files with secrets that others can read, or that the broker cannot read again: said at the start."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tidemq.config import Config

_log = logging.getLogger("tidemq.host")


def secret_files(config: Config) -> list[Path]:
    """What the configuration names that holds secrets."""
    named = [config.admin_token_file, config.admin_tokens_file, config.admin_key or config.admin_cert]
    named += _of_provider(config.authenticator, config.authenticator_options)
    named += _of_provider(config.authoriser, config.authoriser_options)
    for listener in config.listeners:
        named += _of_provider(listener.authenticator or "", listener.authenticator_options)
        if listener.tls is not None:
            named.append(str(listener.tls.key or listener.tls.cert))
            named += [str(each.key or each.cert) for each in listener.tls.certificates]
    for bridge in config.bridges:
        named.append(bridge.password_file)
        if bridge.tls is not None and bridge.tls.certificate is not None:
            named.append(str(bridge.tls.key or bridge.tls.certificate))
    return [Path(name) for name in dict.fromkeys(named) if name]


def _of_provider(name: str, options: Mapping[str, Any]) -> list[str]:
    if name == "chain":
        return [
            file
            for member in options.get("of", ())
            for file in _of_provider(member.get("authenticator", ""), member)
        ]
    return [str(options.get("file" if name == "password_file" else "secret_file") or "")]


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
