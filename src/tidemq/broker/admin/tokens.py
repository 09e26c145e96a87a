"""Who may ask the admin listener, by the token that they send, and what each may do.

`admin_token_file` holds one token, whose holder may do everything. `admin_tokens_file` holds the digests of
several, each with a name and a role.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidemq.broker.admin.api import Role
from tidemq.config import refused

TOKEN_CHARACTERS_MIN = 16
TOKENS_MAX = 1000
FILE_BYTES_MAX = 1 << 20
THE_TOKEN = "admin"  # the name of who has that of admin_token_file
ROLES = tuple(role.name.lower() for role in Role)


@dataclass(frozen=True, slots=True)
class Holder:
    """Who asks."""

    name: str
    role: Role


class _Entry(BaseModel):
    """One `[[tokens]]` of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[!-~]{1,64}$")]
    role: Annotated[str, Field(pattern=f"^({'|'.join(ROLES)})$")]
    token_sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    tokens: Annotated[list[_Entry], Field(min_length=1, max_length=TOKENS_MAX)]


class Tokens:
    """Those of both files. Reads them at once; ConfigError, which quotes no token, for a wrong one."""

    def __init__(self, token_file: str, tokens_file: str) -> None:
        self._token_file = token_file
        self._tokens_file = tokens_file
        self._holders: dict[bytes, Holder] = {}
        self.reload()

    def __bool__(self) -> bool:
        return bool(self._holders)

    def reload(self) -> None:
        """Reads the files again. ConfigError for a wrong one; then what was read before stays in force."""
        found: dict[bytes, Holder] = {}
        if self._tokens_file:
            found = read_tokens(Path(self._tokens_file))
        if self._token_file:
            found[digest(read_token(Path(self._token_file)))] = Holder(THE_TOKEN, Role.ADMIN)
        self._holders = found

    def holder(self, token: str) -> Holder | None:
        """Who has this token. The time that it takes says nothing of a token."""
        return self._holders.get(digest(token))


def digest(token: str) -> bytes:
    """SHA-256: tokens are drawn at random, so that nobody guesses them from it."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def read_token(path: Path) -> str:
    """The token that a file holds, alone."""
    try:
        token = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    except UnicodeDecodeError:
        token = ""
    if len(token) < TOKEN_CHARACTERS_MIN or not token.isascii() or not token.isprintable() or " " in token:
        accepted = [f"one line of {TOKEN_CHARACTERS_MIN} or more printable ASCII characters without a space"]
        raise refused(str(path), "the file", "it holds no token", accepted)
    return token


def read_tokens(path: Path) -> dict[bytes, Holder]:
    """Holders by the digests of their tokens."""
    try:
        with path.open("rb") as file:
            text = file.read(FILE_BYTES_MAX + 1)
        if len(text) > FILE_BYTES_MAX:
            raise refused(str(path), "the file", "it is too large", [f"{FILE_BYTES_MAX} bytes"])
        entries = _File.model_validate(tomllib.loads(text.decode())).tokens
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise refused(str(path), where, first["msg"], [_accepted()]) from None  # it would quote what it found
    except ValueError as error:  # no UTF-8, no TOML
        raise refused(str(path), "the file", str(error), [_accepted()]) from None
    found: dict[bytes, Holder] = {}
    names: set[str] = {THE_TOKEN}
    for entry in entries:
        key = bytes.fromhex(entry.token_sha256)
        if entry.name in names or key in found:
            problem = f"the name {entry.name!r} or its token stands for somebody else already"
            raise refused(str(path), "tokens", problem, ["a name and a token of its own for each"])
        names.add(entry.name)
        found[key] = Holder(entry.name, Role[entry.role.upper()])
    return found


def _accepted() -> str:
    return f"[[tokens]] with name, role ({', '.join(ROLES)}) and token_sha256 (64 hexadecimal digits)"
