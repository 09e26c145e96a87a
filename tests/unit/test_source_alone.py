"""Spark's data source needs pyspark and pyarrow: an executor that has nothing else can run it."""

from __future__ import annotations

import subprocess
import sys

REFUSED = "polars matplotlib deltalake pandas numpy rich cbor2 msgspec google aiohttp crc32c typer pydantic"
MODULES = ["stream", "bounded_tail", "arrow_sink"]


def test_no_other_package_is_imported() -> None:
    refuse = f"import sys; sys.modules.update(dict.fromkeys({REFUSED.split()!r}))"
    code = f"{refuse}; import {', '.join(f'tidemq.pipeline.sources.{name}' for name in MODULES)}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
