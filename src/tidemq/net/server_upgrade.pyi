from collections.abc import Sequence

class WebSocketTerms:
    def __init__(self, path: str = "/mqtt", origins: Sequence[str] = ()) -> None: ...
