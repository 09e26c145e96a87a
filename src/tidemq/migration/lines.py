"""The lines of a `mosquitto.conf`, those of included files where they are included.

An option is the first word of a line, its value all that follows. Lines that begin with # are comments. Of
flags, numbers and words Mosquitto reads the first word of the value: behind it may stand a comment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tidemq.config import refused

FILE_BYTES_MAX = 16 << 20
FILES_MAX = 1000  # included in all
INCLUDE_DIR = "include_dir"


@dataclass(frozen=True, slots=True)
class Line:
    """One option as it stands somewhere. `reading`: 0 in the main file, else which of the files that were
    included, each time another: what a file says of its listeners and bridges ends with it.
    """

    file: Path
    number: int
    option: str
    value: str
    reading: int = 0

    @property
    def place(self) -> str:
        """For people: file and line."""
        return f"{self.file}:{self.number}"

    @property
    def word(self) -> str:
        """The first word of the value; empty: there is none."""
        return self.value.partition(" ")[0]


def read_lines(path: Path) -> list[Line]:
    """All of them, those of `include_dir` behind the line that includes them, as Mosquitto reads them: files
    that end in .conf, by name, and only where the main file says so. ConfigError where one cannot be read.
    """
    found: list[Line] = []
    files = 1
    for line in _lines_of(path):
        found.append(line)
        if line.option != INCLUDE_DIR:
            continue
        for each in _included(line):
            files += 1
            if files > FILES_MAX:
                raise refused(line.place, INCLUDE_DIR, f"more than {FILES_MAX} files", ["fewer"])
            found += _lines_of(each, files - 1)
    return found


def _included(line: Line) -> list[Path]:
    try:
        files = [each for each in Path(line.value).iterdir() if each.name.endswith(".conf")]
    except OSError as error:
        problem = f"{line.value}: {error.strerror}"
        raise refused(line.place, INCLUDE_DIR, problem, ["a readable directory"]) from error
    return sorted(files, key=_place_of)


def _place_of(file: Path) -> list[tuple[int, int]]:
    """By letters in upper case, so that _ comes behind them; of the same letter upper case first."""
    name = os.fsencode(file.name)
    return list(zip(name.upper(), name, strict=True))


def _lines_of(path: Path, reading: int = 0) -> Iterator[Line]:
    try:
        text = path.read_bytes()
        if len(text) > FILE_BYTES_MAX:
            raise refused(str(path), "the file", "it is too large", [f"{FILE_BYTES_MAX} bytes"])
        content = text.decode("utf-8-sig")
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    except UnicodeDecodeError as error:
        raise refused(str(path), "the file", "it is not UTF-8", ["a mosquitto.conf"]) from error
    if "\0" in content:
        raise refused(str(path), "the file", "it has a NUL character", ["a mosquitto.conf"])
    for number, line in enumerate(content.split("\n"), 1):
        option, _, value = line.strip(" \t\r\f\v").partition(" ")
        if option and not option.startswith("#"):
            yield Line(path, number, option, value.strip(), reading)
