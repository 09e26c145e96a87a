"""The programs in the pages run as they stand there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import WAIT_S

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def programs() -> list[str]:
    """Whole programs in the pages, and the example that ends by itself."""
    blocks = re.findall(r"```python\n(.*?)```", "".join(page.read_text() for page in PAGES), re.DOTALL)
    return [*blocks, (ROOT / "examples/embed.py").read_text()]


@pytest.mark.parametrize("program", programs() if PAGES else [], ids=lambda _: "program")
def test_programs_in_the_pages_run(program: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", program]
    if "\ndef test_" in program:
        path = tmp_path / "test_page.py"
        path.write_text(program)
        command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:asyncio", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout
