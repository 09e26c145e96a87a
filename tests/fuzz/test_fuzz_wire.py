"""The corpus gives what its files' names say, a short fuzz run finds nothing, and the driver can find."""

from __future__ import annotations

import ctypes
import dataclasses
import faulthandler
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tidemq.wire import Fault

SCRIPT = Path(__file__).with_name("fuzz_wire.py")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_wire", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz_wire = load()
CORPUS = sorted(fuzz_wire.SUBJECT.corpus_folder.iterdir())
VERSIONS = {"3.1": 3, "3.1.1": 4, "5.0": 5}


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_corpus_file_gives_what_its_name_says(path: Path) -> None:
    data = path.read_bytes()
    assert data[0] == VERSIONS[path.name.split("-")[1]]
    version, fault, packet_type, *_ = fuzz_wire.exercise(data)
    assert version == data[0]
    if path.name.startswith("good-"):
        assert (fault, packet_type) == (None, None)
    else:
        assert f"-{fault.name.lower().replace('_', '-')}.{packet_type}-" in path.name


def test_corpus_has_a_file_for_each_fault_of_a_packet() -> None:
    by_choice = {Fault.TOPIC_LEVELS, Fault.PACKET_TOO_LARGE}  # limits, which the target does not set
    expected = {f for f in Fault if Fault.VARINT_OVERLONG <= f <= Fault.PACKET_TOO_LARGE} - by_choice
    found = {fuzz_wire.exercise(path.read_bytes())[1] for path in CORPUS}
    assert expected <= found


def run(*options: str) -> str:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


def test_short_run_finds_nothing_and_is_the_same_for_a_seed() -> None:
    first = run("--runs", "5000", "--seed", "7")
    assert f"replayed {len(CORPUS)}, ran {5000 - len(CORPUS)} more" in first
    assert run("--runs", "5000", "--seed", "7") == first
    assert run("--runs", "5000", "--seed", "8") != first


def test_driver_keeps_the_input_of_a_failed_check(tmp_path: Path) -> None:
    def picky(data: bytes) -> None:
        assert b"\xed\xff" not in data  # in no file of the corpus, and within reach of mutation

    assert not any(b"\xed\xff" in path.read_bytes() for path in CORPUS)
    assert (
        fuzz_wire.guarded(dataclasses.replace(fuzz_wire.SUBJECT, target=picky), 1, 60, 200_000, tmp_path) == 1
    )
    [crash] = tmp_path.iterdir()
    assert b"\xed\xff" in crash.read_bytes()


def test_driver_keeps_the_input_that_was_read_past_its_end(tmp_path: Path) -> None:
    def greedy(data: bytes) -> None:
        view = fuzz_wire.PAGES.hold(data)
        start = ctypes.addressof(ctypes.c_char.from_buffer(view))
        assert ctypes.string_at(start, len(data)) == data
        if len(data) > 60:
            faulthandler.disable()  # in the child process only
            ctypes.string_at(start, len(data) + 1)

    assert (
        fuzz_wire.guarded(dataclasses.replace(fuzz_wire.SUBJECT, target=greedy), 1, 60, 200_000, tmp_path)
        == 1
    )
    [crash] = tmp_path.iterdir()
    assert len(crash.read_bytes()) > 60
