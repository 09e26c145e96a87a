"""A Mosquitto's configuration, and what it kept, as a directory with which TideMQ starts."""

from __future__ import annotations

import os
import pwd
import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from tidemq.broker.access.file_formats import read_rules
from tidemq.config import Config, check_values
from tidemq.errors import UsageError
from tidemq.migration.access import (
    NOBODY,
    Access,
    Rules,
    plan_access,
    plan_certificate_users,
    plan_client_ids,
    same_rules,
)
from tidemq.migration.bridges import local_client_id, plan_bridge
from tidemq.migration.broker_options import plan_broker
from tidemq.migration.lines import read_lines
from tidemq.migration.listeners import plan_listener
from tidemq.migration.output import Output
from tidemq.migration.report import Report
from tidemq.migration.sections import Section, Sections, part_lines
from tidemq.migration.stored import leave_out_bridges, refused_subscriptions, report_state
from tidemq.migration.toml_writer import write_toml
from tidemq.store.directory import replace_file, sync_directory
from tidemq.store.engines import open_empty
from tidemq.store.mosquitto import MosquittoState, plan_rows
from tidemq.store.portable import fill_store

CONFIG = "tidemq.toml"
REPORT = "report.txt"
_RULES = "rules.acl"
# without what these say more clients would be let in, or may do more; nobody is: at the listener, at any
_CLOSING = ("psk_hint", "mount_point")
_CLOSING_ALL = ("clientid_prefixes",)


def plan_import(conf: Path, folder: Path, state: MosquittoState | None = None) -> Output:
    """Reads a `mosquitto.conf` and all that it names, for a directory that is not there yet; writes nothing.
    ConfigError where a file cannot be read, or a value cannot be one. `state`: what Mosquitto kept; of
    it is taken out what its bridges kept for themselves.
    """
    report = Report()
    output = Output(folder.absolute(), report)
    sections = part_lines(read_lines(conf), report)
    plan_broker(sections.broker, output, has_data=state is not None)
    rules = _plan_listeners(sections, output)
    if rules.content is not None:
        output.config["acl_file"] = str(output.keep(_RULES, rules.content))
        output.config["acl_format"] = rules.form
    for each in sections.bridges:
        if (bridge := plan_bridge(each, output)) is not None:
            output.config.setdefault("bridges", []).append(bridge)
    for section in sections.all:
        section.rest()
    check_values({key: value for key, value in output.config.items() if key in Config.model_fields}, conf)
    if state is not None:
        leave_out_bridges(state, map(local_client_id, sections.bridges), report)
        report_state(state, report)
    return output


def _plan_listeners(sections: Sections, output: Output) -> Rules:
    """Fills `listeners`, and the authenticators; gives the rules that hold for all."""
    common = None
    if not sections.per_listener:
        common = plan_access(sections.broker, output, local_only=sections.local_only)
        output.config |= common.authenticator()
        if plan_client_ids(sections.broker):
            output.config["client_id_required"] = True
    closed = any(each.has(option) for each in sections.all for option in _CLOSING_ALL)
    tables: list[dict[str, Any]] = []
    found = []
    for section in sections.listeners:
        own = common or plan_access(section, output, local_only=sections.local_only)
        found.append((own.rules, next(iter(section.all("acl_file")), None)))
        planned = plan_listener(section, output, local_only=sections.local_only)
        keys = _access_keys(section, own, planned[0], common)
        if closed or any(section.has(option) for option in _CLOSING):
            keys |= NOBODY
        tables += [each | keys for each in planned]
    output.config["plain"] = False
    output.config["listeners"] = tables
    return same_rules(found, output)


def _access_keys(
    section: Section, own: Access, table: dict[str, Any], common: Access | None
) -> dict[str, Any]:
    """What a listener says for itself of who may connect."""
    keys: dict[str, Any] = {} if common is not None else own.authenticator()
    if section.has("listener_allow_anonymous"):
        keys = own.authenticator(section.flag("listener_allow_anonymous", False))
    if common is None and plan_client_ids(section):
        keys["client_id_required"] = True
    by_certificate = plan_certificate_users(section)
    if by_certificate and "client_cert" not in table.get("tls", {}):
        by_certificate = NOBODY  # no client is asked for a certificate: Mosquitto lets in nobody, too
    return keys | by_certificate


def write_import(output: Output, state: MosquittoState | None = None) -> None:
    """Writes the directory, whole or not at all; all that is in it only its owner may read. The configuration
    comes last: where there is none, an import was killed. UsageError where there is something already,
    OSError or StoreError where it cannot be written.
    """
    folder = output.folder
    with _new_folder(folder):
        for name, content in output.files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, content)
        if state is not None:
            _write_store(output, state)
        replace_file(folder / REPORT, "".join(f"{line}\n" for line in output.report.lines()).encode())
        unfinished = folder / f"{CONFIG}.unfinished"
        replace_file(unfinished, write_toml(output.config).encode())
        _give(folder, output.config.get("user", ""))
        unfinished.rename(folder / CONFIG)
        sync_directory(folder)


def _give(folder: Path, user: str) -> None:
    """Where root does this: makes all of it that user's, if there is one, who could not read it otherwise."""
    if not user or os.geteuid() != 0:
        return
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        return
    for path in (folder, *folder.rglob("*")):
        os.chown(path, found.pw_uid, found.pw_gid, follow_symlinks=False)


def _write_store(output: Output, state: MosquittoState) -> None:
    if "acl_file" in output.config:
        rules = read_rules(Path(output.config["acl_file"]), output.config["acl_format"])
        for name, wanted, why in refused_subscriptions(state, rules):
            text = f"this subscription of client {name!r} will end when it connects: {why}"
            output.report.add("changed", "mosquitto.db", repr(wanted), text)
    with closing(open_empty(output.folder / "data", output.config["store"])) as store:
        fill_store(store, plan_rows(state))


@contextmanager
def _new_folder(folder: Path) -> Iterator[None]:
    """The directory, made, or empty as it is; as it was before if something goes wrong."""
    made = not folder.exists()
    if not made and (not folder.is_dir() or any(folder.iterdir())):
        wanted = "name a directory that is empty or missing"
        if folder.is_dir() and not (folder / CONFIG).exists():
            wanted += f"; without a {CONFIG} it may be of an import that was killed: remove it then"
        raise UsageError(f"{folder} is there already: {wanted}")
    before = os.umask(0o077)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for path in folder.iterdir() if folder.is_dir() else ():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if made and folder.is_dir():
            folder.rmdir()
        raise
    finally:
        os.umask(before)
