"""What a backtest knows at its end, for a live job that goes on from there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self

import pyarrow.fs as pafs
from pyspark.sql import DataFrame, SparkSession

from tidemq.errors import UsageError
from tidemq.pipeline.places import place_uri

_COLUMNS = "rule string, key string, json string"


@dataclass(frozen=True, slots=True)
class Handover:
    """Where a live job begins. In a folder, beside what is known of each rule and topic or client."""

    stream: str
    epoch: int
    offset: int

    @classmethod
    def load(cls, folder: str) -> Self:
        """UsageError where there is none, or not a whole one."""
        files, root = _place(folder)
        try:
            with files.open_input_stream(f"{root}/position.json") as file:
                return cls(**json.loads(file.read()))
        except FileNotFoundError:
            raise UsageError(f"there is no handover of a backtest in {folder}") from None

    def write(self, known: DataFrame, folder: str) -> None:
        """`known` has the columns of `states`. The folder is whole once it has the position."""
        known.write.parquet(_states(folder))
        files, root = _place(folder)
        with files.open_output_stream(f"{root}/position.json") as file:
            file.write(json.dumps(asdict(self)).encode())

    @staticmethod
    def states(spark: SparkSession, folder: str) -> DataFrame:
        """By rule and key, as JSON."""
        return spark.read.schema(_COLUMNS).parquet(_states(folder))


def refuse_taken(folder: str) -> None:
    """UsageError where the folder is not empty; none is asked for by an empty name."""
    if not folder:
        return
    files, root = _place(folder)
    if files.get_file_info(pafs.FileSelector(root, allow_not_found=True)):
        raise UsageError(f"the folder {folder} is not empty; accepted: one that is to be made")


def _states(folder: str) -> str:
    return f"{place_uri(folder)}/states"


def _place(folder: str) -> tuple[pafs.FileSystem, str]:
    files, root = pafs.FileSystem.from_uri(place_uri(folder))
    return files, root
