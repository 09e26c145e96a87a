class TlsContext:
    def __init__(
        self, *, cafile: str = "", cert: str = "", key: str = "", insecure: bool = False
    ) -> None: ...
