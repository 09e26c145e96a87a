"""The corpus gives what its files' names say, and a short fuzz run finds nothing."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).with_name("fuzz_transport.py")


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz_transport", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


fuzz_transport = load()
ENDS = {
    "live": (3, False),
    "live-cut": (3, False),
    "live-hello-changed": (3, True),
    "live-record-changed": (3, True),
    "plain": "open",
    "proxy-1-ipv4": "open",
    "proxy-1-ipv6": "open",
    "proxy-1-unknown": "open",
    "proxy-2-ipv4-fields": "open",
    "proxy-2-ipv6": "open",
    "proxy-2-local": "open",
    "proxy-2-unix": "open",
    "tls-1.2-hello": "the TLS handshake",
    "tls-1.3-hello": "the TLS handshake",
    "tls-claims-behind-a-fault": "TLS failed: packet length too long",
    "tls-claims-too-much": "TLS failed: a message of the handshake is too long",
    "tls-no-tls": "TLS failed: the client does not speak TLS",
    "tls-other-protocol": "TLS failed: no application protocol",
    "tls-proxied": "the TLS handshake",
    "tls-record-of-no-version": "TLS failed: wrong version number",
    "websocket": "the client closed the WebSocket (code 1000)",
    "websocket-long-frame": "open",
    "websocket-no-upgrade": "this is no upgrade to WebSocket",
    "websocket-other-origin": "pages of this origin may not connect",
    "websocket-proxied": "the client closed the WebSocket (code 1000)",
    "websocket-text": "text, where MQTT has binary messages",
    "websocket-wrong-path": "there is nothing at this path",
}


def test_corpus_gives_what_its_names_say() -> None:
    found = {}
    for path in fuzz_transport.SUBJECT.corpus_folder.iterdir():
        seen = fuzz_transport.exercise(path.read_bytes())
        found[path.name] = seen if len(seen) == 2 else seen[4].rpartition(": ")[2]
    whole = {name: end.rpartition(": ")[2] if isinstance(end, str) else end for name, end in ENDS.items()}
    assert found == whole


def run(*options: str) -> str:
    command = [sys.executable, str(SCRIPT), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=True).stdout


def test_short_run_finds_nothing_and_is_the_same_for_a_seed() -> None:
    first = run("--runs", "2500", "--seed", "7")
    assert f"replayed {len(ENDS)}, ran {2500 - len(ENDS)} more" in first
    assert run("--runs", "2500", "--seed", "7") == first


def test_bytes_that_come_from_nowhere_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubling(fuzz_transport.Stream):  # type: ignore[misc, name-defined]
        def receive(self, data: bytes) -> bytes:
            return bytes(super().receive(data)) + (b"x" if len(data) == 7 else b"")

    monkeypatch.setattr(fuzz_transport, "Stream", Doubling)
    data = (fuzz_transport.SUBJECT.corpus_folder / "websocket").read_bytes()
    with pytest.raises(AssertionError):
        fuzz_transport.exercise(data)
