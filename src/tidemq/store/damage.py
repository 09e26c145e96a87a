"""Takes damaged files out of a closed RocksDB database, so that the rest can be opened.

RocksDB's own repair is used only where the MANIFEST is lost: it reads every table, puts all into one level,
and forgets the families that have no table yet, whose rows are in the log alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path

from rocksdict import Options, Rdict

from tidemq.errors import StoreError
from tidemq.store.directory import DataDirectory, replace_file, sync_directory
from tidemq.store.manifest import (
    encode_added_family,
    encode_dropped_table,
    find_endless_records,
    find_manifest,
    parse_manifest,
    rewrite_manifest,
)

UNKNOWN_TYPE = 100  # of a record: RocksDB says that it is damaged
HELD = "held"  # folder of the logs while the MANIFEST is made anew; found at a start: that was interrupted


def is_damage(error: str) -> bool:
    """Whether an error of RocksDB's says that a file is damaged or missing."""
    missing = "No such file" in error or "does not exist" in error
    return "Corruption" in error or (missing and bool(re.search(r"\d+\.sst|MANIFEST|CURRENT", error)))


def is_log_damage(error: str) -> bool:
    """Whether it is the write-ahead log: those errors name no file."""
    return is_damage(error) and not re.search(r"\d+\.sst|MANIFEST|CURRENT|creating a new Db", error)


def find_tables(error: str) -> list[int]:
    """Numbers of the damaged tables that an error names."""
    return sorted({int(number) for number in re.findall(r"(\d+)\.sst", error)}) if is_damage(error) else []


def is_new(files: Path) -> bool:
    """Whether no database has been made there yet."""
    return not any(re.fullmatch(r"CURRENT|MANIFEST-\d+|\d+\.(sst|log)", name) for name in os.listdir(files))


def defuse_logs(directory: DataDirectory, *, strict: bool) -> list[str]:
    """Makes records that RocksDB would read without end such that it finds them damaged.

    StoreError when there is one and the store is strict.
    """
    lines = []
    for path in [*directory.files.glob("*.log"), *directory.files.glob("MANIFEST-*")]:
        if not path.stat().st_size:
            continue
        with path.open("r+b") as file, mmap(file.fileno(), 0) as text:
            found = find_endless_records(text)
            if found and strict:
                raise StoreError(f"{path} is damaged: Corruption: unknown type of record")
            if found:
                place = directory.set_aside(path, keep=True)
                lines.append(f"{path.name} is damaged; copied to {place}")
            for at in found:
                text[at] = UNKNOWN_TYPE
    return lines


def drop_table(directory: DataDirectory, number: int) -> str:
    """Takes a table out of the database and moves it away; StoreError when the MANIFEST does not know it."""
    path = find_manifest(directory.files)
    manifest = parse_manifest(path.read_bytes())
    if number not in manifest.tables:
        raise StoreError(f"table {number:06}.sst is damaged, and {path.name} does not have it")
    family, level = manifest.tables[number]
    rewrite_manifest(path, manifest, [encode_dropped_table(family, level, number)])
    name = next((name for name, each in manifest.families.items() if each == family), str(family))
    table = directory.files / f"{number:06}.sst"
    what = f"table {table.name} of family {name!r} is damaged or missing, and its rows are lost"
    return f"{what}; set aside as {directory.set_aside(table)}" if table.exists() else what


def mend_manifest(directory: DataDirectory) -> list[str]:
    """Makes CURRENT name a MANIFEST again, or makes a MANIFEST from the tables; loses no row."""
    files = directory.files
    current = files / "CURRENT"
    lines = []
    try:
        find_manifest(files)
    except StoreError:
        lines.append("CURRENT was missing")
        if current.exists():
            lines = [f"CURRENT was damaged; set aside as {directory.set_aside(current)}"]
        newest = sorted(files.glob("MANIFEST-*"), key=lambda path: (len(path.name), path.name))
        if newest and not (files / HELD).exists():
            replace_file(current, f"{newest[-1].name}\n".encode())
            return lines
    return lines + _rebuild(directory)


def record_families(directory: DataDirectory, families: Sequence[str]) -> None:
    """Keeps the ids that RocksDB gave to families: those in the log need the same in a rebuilt MANIFEST."""
    path = directory.path / "families"
    if not path.exists() or _read_families(path).keys() != set(families):
        found = parse_manifest(find_manifest(directory.files).read_bytes()).families
        replace_file(path, "".join(f"{name} {found[name]}\n" for name in families).encode())


def copy_logs(directory: DataDirectory) -> str:
    """Keeps copies of all logs before the readable part of them is read."""
    logs = sorted(directory.files.glob("*.log"))
    places = ", ".join(str(directory.set_aside(path, keep=True)) for path in logs)
    return f"the write-ahead log is damaged, and what cannot be read of it is lost; copied to {places}"


def _rebuild(directory: DataDirectory) -> list[str]:
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
    lines = ["the MANIFEST was damaged or missing, and was made anew from the tables"]
    known = _add_families(directory)
    for path in sorted(held.iterdir()):
        if known:
            path.rename(files / path.name)
        else:
            place = directory.set_aside(path)
            lines.append(f"{path.name} cannot be read without the file `families`; set aside as {place}")
    held.rmdir()
    sync_directory(files)
    lost = files / "lost"  # where RocksDB's repair puts the old MANIFEST and tables that it cannot read
    for path in sorted(lost.iterdir()) if lost.is_dir() else []:
        lines.append(f"{path.name} is set aside as {directory.set_aside(path)}")
    return lines


def _add_families(directory: DataDirectory) -> bool:
    """Adds to a rebuilt MANIFEST the families that it lacks, under their ids; False without knowing these."""
    path = find_manifest(directory.files)
    manifest = parse_manifest(path.read_bytes())
    ids = _read_families(directory.path / "families")
    if any(ids.get(name) != number for name, number in manifest.families.items() if name != "default"):
        return False
    highest = max(ids.values(), default=0)
    missing = {name: number for name, number in ids.items() if name not in manifest.families}
    edits = [encode_added_family(name, number, highest) for name, number in missing.items()]
    rewrite_manifest(path, manifest, edits)
    return bool(ids)


def _read_families(path: Path) -> dict[str, int]:
    """The ids of families as `record_families` wrote them; none when they cannot be read."""
    try:
        lines = path.read_text().splitlines()
        return {name: int(number) for name, number in (line.split() for line in lines)}
    except (OSError, ValueError):
        return {}
