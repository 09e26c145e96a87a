from collections.abc import Sequence

from tidemq.engine.door.rule_row import RuleRow

def judge_rows(
    rows: Sequence[RuleRow],
    action: int,
    topic: bytes,
    *,
    user: bytes | None,
    client_id: bytes,
    groups: Sequence[bytes],
    address: bytes | None,
) -> int: ...
