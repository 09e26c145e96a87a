"""A broker without the packages of an extra does what it can without them, and says what is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from waiting import WAIT_S, wait_until

from tidemq.testing.ports import free_port

WITHOUT = """
import sys
for name in ("pyarrow", "crc32c"):
    sys.modules[name] = None
from tidemq.cli import main
main()
"""


def answer(url: str) -> tuple[int, str]:
    """0: nobody is there."""
    try:
        with urlopen(url, timeout=WAIT_S) as response:
            return response.status, response.read().decode()
    except HTTPError as error:
        return error.code, error.read().decode()
    except URLError:
        return 0, ""


def test_with_the_extra_admin_alone_a_broker_serves_and_says_what_streams_need(tmp_path: Path) -> None:
    admin = free_port()
    arguments = ["serve", "--host", "127.0.0.1", "--port", "0", "--admin-port", str(admin)]
    command = [sys.executable, "-c", WITHOUT, *arguments, "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            url = f"http://127.0.0.1:{admin}"
            wait_until(lambda: answer(f"{url}/ready")[0] == 200, "a broker that is ready")
            for path in ("/streams", "/streams/a/messages"):
                status, text = answer(url + path)
                assert status == 501
                assert "pip install 'tidemq[streams]'" in text
        finally:
            process.terminate()
    assert process.returncode == 0
