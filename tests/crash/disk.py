"""The disk that fails on demand: compiles `disk.c`, tells it what to do, and takes the power away.

`Disk` belongs to one data directory. Its environment goes to the broker, and to nobody else. What power
loss leaves is read from the shadow that the layer keeps (`disk.c` says what it takes for durable); what was
written and not synced survives in part where `kept` says so, as on a real machine, at random.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).with_name("disk.c")
FILES_MAX = 8192
FILE = struct.Struct("=232sqqQii")  # path, dirty from and to, inode, state, filled
HEAD = struct.Struct("=8i32x")
FIELDS = (
    "fsync_delay_us",
    "fsync_failures",
    "full",
    "torn_write",
    "writes",
    "fsyncs",
    "failed",
    "file_count",
)
LIVE, GONE = 1, 2
DIRECTORY = -1  # in place of a file's number
COMPILE_S = 60


def compile_layer(folder: Path) -> Path:
    """The shared library, made by gcc in `folder` unless it is there already."""
    library = folder / "disk.so"
    if not library.exists() or library.stat().st_mtime < SOURCE.stat().st_mtime:
        made = folder / f"disk.{os.getpid()}.so"
        flags = ["-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        subprocess.run(
            ["gcc", *flags, "-o", made, SOURCE, "-ldl", "-lpthread"], check=True, timeout=COMPILE_S
        )
        made.replace(library)
    return library


class Disk:
    """The disk under `data`. Its own files lie in `folder`, which must not be below `data`."""

    def __init__(self, library: Path, data: Path, folder: Path, *, power: bool) -> None:
        self.library, self.data, self.folder = library, data.resolve(), folder.resolve()
        self.shadow = self.folder / "shadow" if power else None
        self.folder.mkdir(parents=True)
        control = self.folder / "control"
        with control.open("w+b") as file:
            file.truncate(HEAD.size + FILES_MAX * FILE.size)
            self._memory = mmap.mmap(file.fileno(), 0)
        self.environment = {
            "LD_PRELOAD": str(library),
            "CRASH_DISK_DATA": str(self.data),
            "CRASH_DISK_CONTROL": str(control),
        }
        if self.shadow:
            self.environment["CRASH_DISK_SHADOW"] = str(self.shadow)
            (self.shadow / "blobs").mkdir(parents=True)

    def tell(self, **faults: int) -> None:
        """Sets fields of `disk.c`'s control: `full=1`, `fsync_failures=-1`, `fsync_delay_us=20_000`..."""
        for name, value in faults.items():
            struct.pack_into("=i", self._memory, 4 * FIELDS.index(name), value)

    def heal(self) -> None:
        """Every fault off."""
        self.tell(fsync_delay_us=0, fsync_failures=0, full=0, torn_write=0)

    def told(self, name: str) -> int:
        value: int = struct.unpack_from("=i", self._memory, 4 * FIELDS.index(name))[0]
        return value

    def close(self) -> None:
        self._memory.close()

    def _entry(self, index: int) -> tuple[str, int, int, int, int]:
        """Path, dirty from and to, inode, state of one file."""
        path, start, end, inode, state, _ = FILE.unpack_from(self._memory, HEAD.size + index * FILE.size)
        return path.partition(b"\0")[0].decode(), start, end, inode, state

    def _enter(self, index: int, path: str, inode: int, state: int, dirty: tuple[int, int]) -> None:
        place = HEAD.size + index * FILE.size
        FILE.pack_into(self._memory, place, path.encode(), *dirty, inode, state, 0)

    def _on_disk(self) -> Iterator[tuple[str, Path]]:
        for path in sorted(self.data.rglob("*")):
            if path.is_file():
                yield str(path.relative_to(self.data)), path

    def reconcile(self) -> list[str]:
        """After a kill: puts right what the process did to names and could not note any more.

        Returns the files with something in them that the layer has never seen: made behind its back, so that
        its word on power loss is worth nothing.
        """
        entries = {index: self._entry(index) for index in range(self.told("file_count"))}
        live = {path: index for index, (path, *_, state) in entries.items() if state == LIVE}
        by_inode = {entries[index][3]: index for index in live.values()}
        found = dict(self._on_disk())
        unseen = []
        for path in found:
            index = by_inode.get(found[path].stat().st_ino)
            if index is None and found[path].stat().st_size:
                unseen.append(path)
            elif index is None:
                self._adopt(path, found[path])
            elif entries[index][0] != path:
                old, start, end, inode, _ = entries[index]
                self._enter(index, path, inode, LIVE, (start, end))
                self._note(f"rename\t{index}\t{old}\t{path}")
                live.pop(old, None)
        self._note_directories()
        for path, index in live.items():
            if path not in found:
                self._enter(index, path, 0, GONE, (0, 0))
                self._note(f"unlink\t{index}\t{path}\t")
        return unseen

    def _adopt(self, path: str, file: Path) -> None:
        """A file that was just made."""
        index = self.told("file_count")
        self._enter(index, path, file.stat().st_ino, LIVE, (0, 0))
        self.tell(file_count=index + 1)
        self._note(f"create\t{index}\t{path}\t")

    def _note_directories(self) -> None:
        """Those that were made and not noted."""
        names = self.shadow / "names" if self.shadow else None
        if names and names.exists():
            noted = {
                line.split("\t")[2] for line in names.read_text().splitlines() if line.startswith("mkdir")
            }
            for path in sorted(self.data.rglob("*")):
                if path.is_dir() and str(path.relative_to(self.data)) not in noted:
                    self._note(f"mkdir\t{DIRECTORY}\t{path.relative_to(self.data)}\t")

    def _note(self, line: str) -> None:
        if self.shadow:
            with (self.shadow / "names").open("a") as names:
                names.write(line + "\n")

    def lose_power(self, choose: random.Random, *, kept: bool) -> str:
        """Replaces the data directory, whose process was killed, by what power loss leaves of it.

        Returns what that cost. `kept`: of what was not synced, a random part survives: the first few of the
        waiting changes of names, and of each file's waiting bytes those up to a random place.
        """
        assert self.shadow
        self.reconcile()
        durable, waiting = self._durable_names()
        surviving = choose.randrange(len(waiting) + 1) if kept else 0
        for operation in waiting[:surviving]:
            apply_to_names(durable, operation)
        restored, lost_bytes = self.folder / "restored", 0
        restored.mkdir(mode=0o700)
        for path, index in sorted(durable.items()):
            if any(str(parent) not in durable for parent in Path(path).parents if parent.name):
                continue  # its directory is lost
            if index == DIRECTORY:
                (restored / path).mkdir(parents=True)
            else:
                lost_bytes += self._restore(restored / path, index, choose if kept else None)
        lost_names = len(waiting) - surviving
        shutil.rmtree(self.data, ignore_errors=True)
        restored.rename(self.data)
        self._start_anew()
        return f"{lost_bytes} bytes and {lost_names} changes of names lost, {len(durable)} files left"

    def _durable_names(self) -> tuple[dict[str, int], list[list[str]]]:
        """Names that are durable with the number of their file, and the changes that are not, in order."""
        assert self.shadow
        durable: dict[str, int] = {}
        waiting: list[list[str]] = []
        names = self.shadow / "names"
        for line in names.read_text().splitlines() if names.exists() else ():
            operation = line.split("\t")
            if operation[0] != "sync":
                waiting.append(operation)
                continue
            of_directory = [
                each for each in waiting if str(Path(each[3] or each[2]).parent) == (operation[2] or ".")
            ]
            for each in of_directory:
                apply_to_names(durable, each)
            waiting = [each for each in waiting if each not in of_directory]
        return durable, waiting

    def _restore(self, target: Path, index: int, choose: random.Random | None) -> int:
        """Writes one file as power loss leaves it; returns how many of its bytes are lost."""
        assert self.shadow
        blob = self.shadow / "blobs" / str(index)
        if blob.exists():
            shutil.copyfile(blob, target)
        else:
            target.touch()
        path, start, end, inode, state = self._entry(index)
        if start >= end:
            return 0
        source = self.data / path
        if choose is None or state != LIVE or source.stat().st_ino != inode:
            return end - start
        kept = choose.randrange(start, end + 1) if choose.random() < 0.7 else start
        with source.open("rb") as live, target.open("r+b") as file:
            live.seek(start)
            file.seek(start)
            file.write(live.read(kept - start))
        return end - kept

    def _start_anew(self) -> None:
        """All that lies in the data directory is durable; the table and the shadow know just that."""
        assert self.shadow
        shutil.rmtree(self.shadow)
        (self.shadow / "blobs").mkdir(parents=True)
        directories = [path for path in sorted(self.data.rglob("*")) if path.is_dir()]
        for directory in directories:
            self._note(f"mkdir\t{DIRECTORY}\t{directory.relative_to(self.data)}\t")
        count = 0
        for path, file in self._on_disk():
            self._enter(count, path, file.stat().st_ino, LIVE, (0, 0))
            shutil.copyfile(file, self.shadow / "blobs" / str(count))
            self._note(f"create\t{count}\t{path}\t")
            count += 1
        self.tell(file_count=count)
        for directory in (self.data, *directories):
            name = str(directory.relative_to(self.data))
            self._note(f"sync\t-1\t{'' if name == '.' else name}\t")


def apply_to_names(names: dict[str, int], operation: list[str]) -> None:
    """One line of the shadow's log: creation, renaming or removal."""
    kind, index, path, other = operation
    if kind in ("create", "mkdir"):
        names[path] = int(index)
    else:
        names.pop(path, None)
        if kind == "rename":
            names[other] = int(index)
