"""`tidemq[spark]` is the data source with pyspark and pyarrow and nothing else: in an environment of its own,
for each version of Spark, it reads, follows and publishes, at a broker whose authority is a private one.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trustme
from conftest import StartBroker

from tidemq.client.streams import StreamReader, read_cafile
from tidemq.client.sync import Client
from tidemq.testing.ports import free_port

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("spark_program.py")
VERSIONS = os.environ.get("TIDEMQ_TEST_PYSPARKS", "4.0 4.3").split()
LIMITS = (4, 2)  # the first Spark whose sources know how much a batch may have
MESSAGES = 100

pytestmark = [pytest.mark.timeout(1200), pytest.mark.long]


def environment_with(version: str, wheel: Path, run: Callable[..., str]) -> Path:
    """The Python of an environment with the extra and this Spark; kept in build/ for the next time."""
    folder = ROOT / "build" / f"pyspark-{version}"
    if not folder.exists():
        run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    python = folder / "bin" / "python"
    pip: list[str | Path] = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*pip, "install", "--quiet", f"{wheel}[spark]", f"pyspark=={version}.*", cwd=ROOT)
    run(*pip, "install", "--quiet", "--force-reinstall", "--no-deps", wheel, cwd=ROOT)  # of now
    return python


def offsets(count: int) -> list[int]:
    return list(range(count))


@pytest.mark.parametrize("version", VERSIONS)
def test_the_source_and_the_sink_need_nothing_else(
    version: str,
    wheel: Path,
    run: Callable[..., str],
    start_broker: StartBroker,
    install: Callable[[str, str], None],
    tmp_path: Path,
) -> None:
    install("java", "default-jre-headless")
    python = environment_with(version, wheel, run)
    authority = trustme.CA()
    cert, cafile, port = tmp_path / "cert.pem", tmp_path / "ca.pem", free_port()
    issued = authority.issue_cert("localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(cert))
    authority.cert_pem.write_to_path(str(cafile))
    broker = start_broker(
        f'store = "sqlite"\ndata = "{tmp_path / "data"}"\nadmin_port = {port}\nadmin_cert = "{cert}"\n'
        '[[streams]]\nname = "plant"\nfilters = ["plant/#"]\n'
        '[[streams]]\nname = "copies"\nfilters = ["copy/#"]\n'
    )
    url, mqtt = f"https://localhost:{port}", f"mqtt://127.0.0.1:{broker.port}"
    with Client(mqtt) as client:
        client.publish_many([("plant/a", b"%d" % number) for number in range(MESSAGES)], qos=1)
    said = run(python, PROGRAM, url, cafile, mqtt, tmp_path / "checkpoints", cwd=tmp_path)
    report: dict[str, Any] = json.loads(said.splitlines()[-1])
    assert report["spark"].startswith(f"{version}.")
    assert Path(report["home"]).is_relative_to(python.parents[1])
    assert report["rows"] == [[number, "plant/a", str(number)] for number in range(MESSAGES)]
    assert (report["first"], report["again"]) == (offsets(MESSAGES), [])
    assert report["beside"] == []
    knows_limits = tuple(map(int, version.split("."))) >= LIMITS
    assert ("need Spark 4.2 or newer" in report["limited"]) == (not knows_limits)
    reader = StreamReader(url, "copies", cadata=read_cafile(cafile))
    copies = [row for batch in reader.read(0) for row in batch.to_pylist()]
    found = sorted((row["topic"], int(row["payload"])) for row in copies)
    assert found == sorted([("copy/plant/a", number) for number in range(MESSAGES)] * 2)
