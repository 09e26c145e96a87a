"""Rows of a table that another working of a rule makes again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc

from tidemq.pipeline.lake.table_log import File


@dataclass(frozen=True, slots=True)
class Stale:
    """Those of messages from an offset of each epoch on; without epochs, those of all messages."""

    ends: Mapping[int, int] = field(default_factory=dict)
    rule: str = ""  # whose rows are meant, in a table that has several rules'

    @property
    def whole(self) -> bool:
        """Whether all rows of the table are meant."""
        return not self.ends and not self.rule

    @property
    def columns(self) -> list[str]:
        """That `marks` needs."""
        return ["epoch", "offset", *(["rule"] if self.rule else [])]

    def of(self, rule: str) -> Stale:
        """Among them those of a rule."""
        return replace(self, rule=rule)

    def may_be_in(self, file: File) -> bool:
        each = self.ends.items()
        return not each or any(
            file.overlaps({"epoch": (epoch, epoch), "offset": (end, None)}) for epoch, end in each
        )

    def marks(self, rows: pa.RecordBatch) -> pa.BooleanArray:
        """For each row, whether it is meant; one without an epoch is not."""
        epoch, offset = rows.column("epoch"), rows.column("offset")
        of_messages = (
            pc.and_(pc.equal(epoch, each), pc.greater_equal(offset, end)) for each, end in self.ends.items()
        )
        found = reduce(pc.or_, of_messages) if self.ends else pa.repeat(pa.scalar(True), rows.num_rows)
        if self.rule:
            found = pc.and_(found, pc.equal(rows.column("rule"), self.rule))
        return pc.fill_null(found, False)
