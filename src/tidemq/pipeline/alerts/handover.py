"""What a backtest knows at its end, for a live job that goes on from there."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Self, cast

import pyarrow.fs as pafs
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from tidemq.errors import UsageError
from tidemq.pipeline.places import Storage, place_uri
from tidemq.pipeline.spark.parquet_tasks import read_files

_COLUMNS = "rule string, key string, json string"


@dataclass(frozen=True, slots=True)
class Handover:
    """Where a live job begins. In a folder, beside what is known of each rule and topic or client."""

    stream: str
    epoch: int
    offset: int
    files: tuple[str, ...]  # Parquet, with what is known

    @classmethod
    def load(cls, folder: str, storage: Storage) -> Self:
        """UsageError where there is none, or not a whole one."""
        files, root = storage.open(folder)
        try:
            with files.open_input_stream(f"{root}/position.json") as file:
                return cls(**json.loads(file.read()))
        except FileNotFoundError:
            raise UsageError(f"there is no handover of a backtest in {folder}") from None

    def write(self, folder: str, storage: Storage) -> None:
        """When the files are there, which have the columns of `states`: the folder is whole then."""
        files, root = storage.open(folder)
        files.create_dir(root)  # there may be no file
        with files.open_output_stream(f"{root}/position.json") as file:
            file.write(json.dumps(asdict(self)).encode())

    def states(self, spark: SparkSession, folder: str, storage: Storage) -> DataFrame:
        """By rule and key, as JSON."""
        uris = {f"{place_uri(folder)}/{name}": 0 for name in self.files}
        return read_files(spark, storage, uris, cast(StructType, StructType.fromDDL(_COLUMNS)))


def refuse_taken(folder: str, storage: Storage) -> None:
    """UsageError where the folder is not empty; none is asked for by an empty name."""
    if not folder:
        return
    files, root = storage.open(folder)
    if files.get_file_info(pafs.FileSelector(root, allow_not_found=True)):
        raise UsageError(f"the folder {folder} is not empty; accepted: one that is to be made")
