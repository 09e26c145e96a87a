"""Takes damaged files out of a closed RocksDB database, so that the rest can be opened.

RocksDB's own repair is used only where the MANIFEST is lost: it reads every table, puts all into one level,
and forgets the families that have no table yet, whose rows are in the log alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from rocksdict import Options, Rdict

from tidemq.errors import StoreError
from tidemq.store.directory import DataDirectory, sync_directory
from tidemq.store.manifest import (
    encode_added_family,
    encode_dropped_table,
    parse_manifest,
    rewrite_manifest,
)

HELD = "held"  # folder of the logs while the MANIFEST is made anew; found at a start: that was interrupted


def is_damage(error: str) -> bool:
    """Whether an error of RocksDB's says that a file is damaged or missing."""
    missing = "No such file" in error and re.search(r"\d+\.sst|MANIFEST|CURRENT", error)
    return "Corruption" in error or bool(missing)


def is_log_damage(error: str) -> bool:
    """Whether it is the write-ahead log: those errors name no file."""
    return is_damage(error) and not re.search(r"\d+\.sst|MANIFEST|CURRENT|creating a new Db", error)


def find_tables(error: str) -> list[int]:
    """Numbers of the damaged tables that an error names."""
    return sorted({int(number) for number in re.findall(r"(\d+)\.sst", error)}) if is_damage(error) else []


def is_new(files: Path) -> bool:
    """Whether no database has been made there yet."""
    return not any(re.fullmatch(r"CURRENT|MANIFEST-\d+|\d+\.(sst|log)", name) for name in os.listdir(files))


def drop_table(directory: DataDirectory, number: int) -> str:
    """Takes a table out of the database and moves it away; StoreError when the MANIFEST does not know it."""
    path = _find_manifest(directory.files)
    manifest = parse_manifest(path.read_bytes())
    if number not in manifest.tables:
        raise StoreError(f"table {number:06}.sst is damaged, and {path.name} does not have it")
    family, level = manifest.tables[number]
    rewrite_manifest(path, manifest, [encode_dropped_table(family, level, number)])
    name = next((name for name, each in manifest.families.items() if each == family), str(family))
    table = directory.files / f"{number:06}.sst"
    what = f"table {table.name} of family {name!r} is damaged or missing, and its rows are lost"
    return f"{what}; set aside as {directory.set_aside(table)}" if table.exists() else what


def mend_manifest(directory: DataDirectory, families: Sequence[str]) -> list[str]:
    """Makes CURRENT name a MANIFEST again, or makes a MANIFEST from the tables; loses no row.

    `families` are all that the database had, in the order of their ids from 1 on.
    """
    files = directory.files
    current = files / "CURRENT"
    try:
        _find_manifest(files)
    except StoreError:
        newest = sorted(files.glob("MANIFEST-*"), key=lambda path: (len(path.name), path.name))
        lines = ["CURRENT was missing"]
        if current.exists():
            lines = [f"CURRENT was damaged; set aside as {directory.set_aside(current)}"]
        if newest and not (files / HELD).exists():
            _write_current(files, newest[-1].name)
            return lines
        return [*lines, *_rebuild(directory, families)]
    return _rebuild(directory, families)


def copy_logs(directory: DataDirectory) -> str:
    """Keeps copies of all logs before the readable part of them is read."""
    logs = sorted(directory.files.glob("*.log"))
    places = ", ".join(str(directory.set_aside(path, keep=True)) for path in logs)
    return f"the write-ahead log is damaged, and what cannot be read of it is lost; copied to {places}"


def _find_manifest(files: Path) -> Path:
    """The MANIFEST that CURRENT names; StoreError when there is none."""
    try:
        named = (files / "CURRENT").read_bytes()
    except FileNotFoundError:
        named = b""
    if re.fullmatch(rb"MANIFEST-\d+\n", named) and (path := files / named.decode().strip()).exists():
        return path
    raise StoreError(f"{files / 'CURRENT'} names no MANIFEST")


def _write_current(files: Path, name: str) -> None:
    written = files / "CURRENT.new"
    with written.open("w") as file:
        file.write(f"{name}\n")
        file.flush()
        os.fsync(file.fileno())
    written.rename(files / "CURRENT")
    sync_directory(files)


def _rebuild(directory: DataDirectory, families: Sequence[str]) -> list[str]:
    """Has RocksDB make a MANIFEST from the tables, adds the families that have none, leaves the logs as is.

    The logs stay away meanwhile: RocksDB would turn them into tables, but only of families that have one.
    """
    files, held = directory.files, directory.files / HELD
    held.mkdir(exist_ok=True)
    for path in files.glob("*.log"):
        path.rename(held / path.name)
    try:
        Rdict.repair(str(files), Options(raw_mode=True))
    except Exception as error:
        raise StoreError(f"the MANIFEST in {files} cannot be made anew: {error}") from error
    path = _find_manifest(files)
    manifest = parse_manifest(path.read_bytes())
    expected = {"default": 0, **{name: number for number, name in enumerate(families, 1)}}
    if any(expected.get(name) != number for name, number in manifest.families.items()):
        raise StoreError(f"the families in {files} have unexpected numbers: {manifest.families}")
    missing = {name: number for name, number in expected.items() if name not in manifest.families}
    highest = max(expected.values())
    edits = [encode_added_family(name, number, highest) for name, number in missing.items()]
    rewrite_manifest(path, manifest, edits)
    for each in held.iterdir():
        each.rename(files / each.name)
    held.rmdir()
    sync_directory(files)
    lines = ["the MANIFEST was damaged or missing, and was made anew from the tables"]
    lost = files / "lost"  # where RocksDB's repair puts the old MANIFEST and tables that it cannot read
    for each in sorted(lost.iterdir()) if lost.is_dir() else []:
        lines.append(f"{each.name} is set aside as {directory.set_aside(each)}")
    return lines
