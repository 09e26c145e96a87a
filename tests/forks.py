"""Processes of the command `tidemq` that are forked from one that has imported it already.

A start of Python with what the command imports takes a third of a second of CPU, which is more than most
tests take otherwise, and the tests start hundreds. Where the start itself is tested, and where the process
needs an environment of its own (`LD_PRELOAD`, `PYTHONPATH`), it is started as anybody starts it.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import json
import os
import random
import socket
import subprocess
import sys
import threading
from typing import Any

PR_SET_CHILD_SUBREAPER = 36
REQUEST_BYTES_MAX = 1 << 18


class Tidemq(subprocess.Popen[Any]):
    """`subprocess.Popen`, but for the arguments, which are those of `tidemq`."""

    def _execute_child(self, args: Any, *others: Any) -> None:
        """In place of Popen's own, with what this one is given."""
        cwd, env = others[4], others[5]
        pipes = others[9:15]  # for each standard file the child's end and ours, -1: none is wanted
        written = [1 if pipes[3] == -1 else pipes[3], 2 if pipes[5] == -1 else pipes[5]]
        # Where none is wanted it reads nothing. This process's own may be closed: then a pipe has its number,
        # and a child that held both ends of its output would not see that the reader has gone.
        nothing = os.open(os.devnull, os.O_RDONLY)
        files = [nothing if pipes[0] == -1 else pipes[0], *written]
        asked = {"words": [os.fspath(word) for word in args], "environment": dict(env or os.environ)}
        asked["folder"] = os.fspath(cwd or os.getcwd())
        self.pid = _origin().fork(asked, files)
        os.close(nothing)
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]


def run(*words: object, input: Any = None, **options: Any) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` with its output, and without a time limit: pytest has one."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | options
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with Tidemq([str(word) for word in words], **options) as process:
        out, err = process.communicate(input)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


class Origin:
    """The process that all are forked from; it ends with this one."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self._asking, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            command = [sys.executable, "-P", __file__, str(its.fileno())]
            # as users have it: what is printed is gathered
            environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, pass_fds=[its.fileno()], env=environment
            )
        self._lock = threading.Lock()
        self._prctl = ctypes.CDLL(None).prctl

    def fork(self, asked: dict[str, Any], files: list[int]) -> int:
        """The process's id. It is a child of this process, although another one forked it."""
        with self._lock:
            self._prctl(PR_SET_CHILD_SUBREAPER, 1)
            socket.send_fds(self._asking, [json.dumps(asked).encode()], files)
            answer = self._asking.recv(64)
            self._prctl(PR_SET_CHILD_SUBREAPER, 0)
        assert answer, "the process that forks has ended"
        return int(answer)

    def end(self) -> None:
        if self.owner == os.getpid():
            self._asking.close()
            self._process.wait()


_made: list[Origin] = []


def _origin() -> Origin:
    """This process's own; one that it was forked with is another's."""
    if not _made or _made[-1].owner != os.getpid():
        _made.append(Origin())
        atexit.register(_made[-1].end)
    return _made[-1]


def serve(asking: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Forks for each request, and returns in the forked process. That is orphaned before the answer, so that
    it becomes a child of who asked.
    """
    while True:
        data, files, _, _ = socket.recv_fds(asking, REQUEST_BYTES_MAX, 3)
        if not data:
            os._exit(0)
        theirs, ours = os.pipe()
        if between := os.fork():
            os.close(ours)
            child = os.read(theirs, 64)
            os.waitpid(between, 0)
            asking.send(child)
            for file in (theirs, *files):
                os.close(file)
        elif child_id := os.fork():
            os.write(ours, b"%d" % child_id)
            os._exit(0)
        else:
            for file in (theirs, ours):
                os.close(file)
            return json.loads(data), files


def become(asked: dict[str, Any], files: list[int]) -> None:
    """The process that was asked for, as far as it is not yet."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    random.seed()
    sys.argv = ["tidemq", *asked["words"]]


def main() -> None:
    import tidemq.cli
    import tidemq.cli.serving
    import tidemq.store.rocksdb

    tidemq.cli.make_app()
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as asking:
        asked, files = serve(asking)
    become(asked, files)
    tidemq.cli.main()


if __name__ == "__main__":
    main()
