from collections.abc import Sequence
from typing import Literal

class ServerTls:
    def __init__(
        self,
        cert: str,
        key: str,
        *,
        client_ca: str = "",
        client_cert: Literal["none", "optional", "required"] = "none",
        crl: str = "",
        version_min: Literal["1.2", "1.3"] = "1.2",
        others: Sequence[tuple[Sequence[str], str, str]] = (),
    ) -> None: ...
