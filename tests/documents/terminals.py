"""A reader of a page: types its commands at terminals, in the order of the page.

`python terminals.py PAGE FOLDER --part rest` reads a page in a folder and in a network of its own: no other
server is there, so ports are free. The environment has `HOME`, the folder `home` there, and a short `PATH`,
`venv/bin` of the folder first. What does not go as the page says ends it with status 1. A page is read so:

- A block ```` ```console ```` is typed at the terminal that `title="..."` names, or at the only one without.
  What follows `$ ` is typed. Other lines are what the reader then sees, in this order; `…` stands for
  anything, and there may be lines between them. `^C` is typed too.
- A command that is still to be seen of at its terminal, by lines or `^C` in a later block, goes on
  meanwhile. Any other must end, with status 0.
- Any other block with `title="FILE"` is written to this file, at its end where there is one.
- Blocks with the title `install` are read with `--part install`, in the network of this machine, all others
  with `--part rest`.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

INSTALL = "install"
KEPT = ("TIDEMQ_TEST_OF",)  # of the environment: guard.py's
KEPT_TO_INSTALL = ("PIP_", "PYTHONPATH")  # where packages come from, and how they are built
BLOCK = re.compile(r'^```(\w*)(?: title="([^"]+)")?\n(.*?)^```$', re.MULTILINE | re.DOTALL)
ADMIN = "http://127.0.0.1:18083"


class UntrueError(Exception):
    """The page says something else than what happens."""


@dataclass
class Step:
    """A command, or `^C`, or nothing more than what is to be seen at a terminal; or a file to be written."""

    terminal: str
    typed: str = ""
    seen: list[str] = field(default_factory=list)
    file: str = ""


def steps_of(page: str) -> list[Step]:
    """All of a page, in order."""
    found = []
    for language, title, text in BLOCK.findall(page):
        if language != "console":
            if title:
                found.append(Step("", file=title, typed=text))
            continue
        step = Step(title)  # what is to be seen of what was typed before
        for line in text.splitlines():
            if line.startswith("$ ") or line == "^C":
                found.append(step)
                step = Step(title, typed=line.removeprefix("$ "))
            else:
                step.seen.append(line)
        found.append(step)
    return [step for step in found if step.typed or step.seen]


def goes_on(steps: list[Step], index: int) -> bool:
    """Whether the command of this step is to be seen of again."""
    later = (step for step in steps[index + 1 :] if step.terminal == steps[index].terminal and not step.file)
    following = next(later, None)
    return following is not None and (following.typed in ("", "^C"))


def fits(said: str, seen: list[str]) -> bool:
    """Whether all these lines stand in what was said, in this order."""
    lines: Iterator[str] = iter(said.splitlines())
    patterns = [".*".join(map(re.escape, each.rstrip().split("…"))) for each in seen]
    return all(any(re.fullmatch(pattern, line.rstrip()) for line in lines) for pattern in patterns)


class Terminal:
    """Where commands are typed, one after the other."""

    def __init__(self, folder: Path, environment: dict[str, str], wait_s: float) -> None:
        self._folder = folder
        self._environment = environment
        self._wait_s = wait_s
        self._running: subprocess.Popen[bytes] | None = None
        self._log = Path(os.devnull)

    def type(self, command: str, number: int) -> None:
        """Begins it."""
        if self._running is not None:
            raise UntrueError(f"another command still runs where this one is typed: {command}")
        self._log = self._folder / "home" / f"typed-{number}.log"
        self._running = subprocess.Popen(
            ["bash", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=self._log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def said(self) -> str:
        return self._log.read_text(errors="replace")

    def see(self, seen: list[str]) -> None:
        """Waits until these lines are there."""
        deadline = time.monotonic() + self._wait_s
        while not fits(self.said(), seen):
            ended = self._running is None or self._running.poll() is not None
            if (ended and not fits(self.said(), seen)) or time.monotonic() > deadline:
                raise UntrueError("not seen: " + "\n".join(seen) + f"\nbut:\n{self.said()}")
            time.sleep(0.02)

    def finish(self) -> None:
        """Waits until the command has ended well."""
        assert self._running is not None
        try:
            status = self._running.wait(self._wait_s)
        except subprocess.TimeoutExpired:
            raise UntrueError(f"it goes on and on:\n{self.said()}") from None
        self._running = None
        if status:
            raise UntrueError(f"status {status}:\n{self.said()}")

    def interrupt(self) -> None:
        """Ctrl-C; the command ends."""
        if self._running is None:
            raise UntrueError("^C, but nothing runs")
        os.killpg(self._running.pid, signal.SIGINT)
        try:
            self._running.wait(self._wait_s)
        except subprocess.TimeoutExpired:
            raise UntrueError(f"^C does not end it:\n{self.said()}") from None
        self._running = None

    def end(self) -> None:
        """Whatever still runs."""
        if self._running is not None and self._running.poll() is None:
            os.killpg(self._running.pid, signal.SIGKILL)
            self._running.wait()


def subscriptions() -> int:
    """How many the broker of the page has; -1: there is none, or it has no admin listener."""
    try:
        with urllib.request.urlopen(f"{ADMIN}/counters", timeout=10) as answer:
            return int(json.load(answer)["subscriptions"])
    except OSError:
        return -1


def subscribed(before: int, wait_s: float) -> bool:
    """Waits until there are more subscriptions: a reader is slower than they, this one is not."""
    deadline = time.monotonic() + wait_s
    while subscriptions() <= before and time.monotonic() < deadline:
        time.sleep(0.05)
    return subscriptions() > before


class Reader:
    """Reads a page in a folder."""

    def __init__(self, folder: Path, wait_s: float, kept: tuple[str, ...] = KEPT) -> None:
        """`kept`: how the names of variables begin that commands have from here."""
        self._folder = folder
        self._wait_s = wait_s
        self._terminals: dict[str, Terminal] = {}
        (folder / "home").mkdir(exist_ok=True)
        self._environment = {name: text for name, text in os.environ.items() if name.startswith(kept)}
        self._environment |= {"HOME": str(folder / "home"), "PATH": f"{folder}/venv/bin:/usr/bin:/bin"}

    def read(self, steps: list[Step]) -> None:
        """Raises UntrueError with what is typed where it differs."""
        try:
            for index, step in enumerate(steps):
                try:
                    self._do(step, index, goes_on(steps, index))
                except UntrueError as error:
                    raise UntrueError(f"at {step.terminal!r}: {step.typed}\n{error}") from None
        finally:
            for terminal in self._terminals.values():
                terminal.end()

    def _do(self, step: Step, number: int, goes_on: bool) -> None:
        if step.file:
            with (self._folder / step.file).open("a") as file:
                file.write(step.typed)
            return
        terminal = self._terminals.setdefault(
            step.terminal, Terminal(self._folder, self._environment, self._wait_s)
        )
        if step.typed == "^C":
            terminal.interrupt()
        elif step.typed:
            self._type(terminal, step, number, goes_on)
        else:
            terminal.see(step.seen)

    def _type(self, terminal: Terminal, step: Step, number: int, goes_on: bool) -> None:
        before = subscriptions() if goes_on and not step.seen else 0
        terminal.type(step.typed, number)
        if goes_on:
            terminal.see(step.seen)
            if not step.seen and not subscribed(before, self._wait_s):
                raise UntrueError(f"neither a broker nor a subscription:\n{terminal.said()}")
            return
        terminal.finish()
        if not fits(terminal.said(), step.seen):
            raise UntrueError("not seen: " + "\n".join(step.seen) + f"\nbut:\n{terminal.said()}")


def bring_loopback_up() -> None:
    """In a new network it is down: SIOCSIFFLAGS, up and running."""
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 0x1 | 0x40))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--part", choices=[INSTALL, "rest"], required=True)
    parser.add_argument("--wait-s", type=float, required=True, help="for what must happen")
    given = parser.parse_args()
    installing = given.part == INSTALL
    if not installing:
        bring_loopback_up()
    steps = [each for each in steps_of(given.page.read_text()) if (each.terminal == INSTALL) == installing]
    try:
        Reader(given.folder, given.wait_s, KEPT + KEPT_TO_INSTALL * installing).read(steps)
    except UntrueError as error:
        print(error)
        return 1
    print(f"{sum(bool(step.typed) for step in steps)} typed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
