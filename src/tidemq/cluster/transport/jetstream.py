"""Requests to JetStream at one server, in its own JSON: a stream of copies found, made, read and shortened.

nats-py's own methods ask for more than there is to know here: each answer is checked once, in this module.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tidemq.cluster.transport.frames import Copies, unpack_copies
from tidemq.errors import ClusterError

STREAM_NOT_FOUND = 10059
NOTHING_LEFT = ("204", "404")  # at the end of an answer of many messages
BATCH_MAX = 256  # messages asked for at once


class GoneError(ClusterError):
    """There is no such stream."""


class DamagedError(ClusterError):
    """There is one, and what it says it has cannot be read."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of copies. `subject` is another one each time that the stream is made: what was sent to the
    one before never gets into it.
    """

    name: str
    subject: str
    messages: int
    first: int  # sequence
    last: int


def stream_name(incarnation: int) -> str:
    return f"C_{incarnation:016x}"


async def ask(client: Client, subject: str, body: bytes, answer_s: float) -> Msg:
    """One request. GoneError where nobody listens there; ClusterError without an answer."""
    try:
        return await client.request(subject, body, timeout=answer_s)
    except nats.errors.NoRespondersError as error:
        raise GoneError(f"nobody answers {subject}") from error
    except (nats.errors.Error, TimeoutError, OSError) as error:
        raise ClusterError(f"no answer to {subject}: {error or type(error).__name__}") from error


async def _call(client: Client, verb: str, name: str, fields: dict[str, object], answer_s: float) -> Any:
    """A request of the API; what it answers. GoneError: no such stream."""
    body = json.dumps(fields).encode() if fields else b""
    msg = await ask(client, f"$JS.API.STREAM.{verb}.{name}", body, answer_s)
    try:
        answer = json.loads(msg.data)
        failure = answer.get("error")
    except (ValueError, AttributeError) as error:
        raise ClusterError(f"JetStream answers {verb} with {msg.data[:80]!r}") from error
    if failure:
        wrong = GoneError if failure.get("err_code") == STREAM_NOT_FOUND else ClusterError
        raise wrong(f"JetStream, {verb} {name}: {failure.get('description')} ({failure.get('err_code')})")
    return answer


def _read_stream(name: str, answer: Any) -> Stream:
    try:
        state, [subject] = answer["state"], answer["config"]["subjects"]
        numbers = [int(state[key]) for key in ("messages", "first_seq", "last_seq")]
        return Stream(name, str(subject), *numbers)
    except (KeyError, TypeError, ValueError) as error:
        raise ClusterError(f"the stream {name} is not one of ours") from error


async def find_stream(client: Client, name: str, answer_s: float) -> Stream:
    return _read_stream(name, await _call(client, "INFO", name, {}, answer_s))


async def make_stream(client: Client, name: str, answer_s: float) -> Stream:
    """An empty one. What is too much for the server is refused: the oldest copies are not dropped for it. No
    room is kept for the stream: how large it gets is how far its node's log goes back.
    """
    fields: dict[str, object] = {
        "name": name,
        "subjects": [f"tidemq.copies.{name}.{secrets.token_hex(4)}"],
        "storage": "file",
        "retention": "limits",
        "discard": "new",
        "num_replicas": 1,
        "allow_direct": True,
    }
    return _read_stream(name, await _call(client, "CREATE", name, fields, answer_s))


async def delete_stream(client: Client, name: str, answer_s: float) -> None:
    with suppress(GoneError):
        await _call(client, "DELETE", name, {}, answer_s)


async def purge(client: Client, stream: Stream, before: int, answer_s: float) -> None:
    """Removes the messages before this sequence."""
    await _call(client, "PURGE", stream.name, {"seq": before}, answer_s)


async def read_last(client: Client, stream: Stream, answer_s: float) -> Copies:
    """The last message. DamagedError where it cannot be read."""
    body = json.dumps({"last_by_subj": stream.subject}).encode()
    msg = await ask(client, f"$JS.API.DIRECT.GET.{stream.name}", body, answer_s)
    if (msg.headers or {}).get("Status"):
        raise DamagedError(f"the last message of {stream.name} cannot be read")
    try:
        return unpack_copies(msg.data)
    except ClusterError as error:
        raise DamagedError(str(error)) from error


async def read_from(
    client: Client, stream: Stream, sequence: int, messages_max: int, bytes_max: int, answer_s: float
) -> list[tuple[int, bytes]]:
    """Messages from this sequence on with theirs, those that are there: at least one where there is one."""
    inbox = client.new_inbox()
    subscription = await client.subscribe(inbox)
    fields = {"seq": max(1, sequence), "next_by_subj": stream.subject}
    if messages_max > 1:
        fields |= {"batch": min(messages_max, BATCH_MAX), "max_bytes": bytes_max}
    found: list[tuple[int, bytes]] = []
    try:
        await client.publish(f"$JS.API.DIRECT.GET.{stream.name}", json.dumps(fields).encode(), reply=inbox)
        while len(found) < messages_max:
            msg = await subscription.next_msg(timeout=answer_s)
            headers = msg.headers or {}
            status = str(headers.get("Status", ""))
            if status == "503":
                raise GoneError(f"there is no stream {stream.name}")
            if status:
                if status not in NOTHING_LEFT:
                    raise ClusterError(f"JetStream, reading {stream.name}: status {status}")
                break
            found.append((int(headers["Nats-Sequence"]), msg.data))
    except (nats.errors.Error, TimeoutError, OSError, KeyError, ValueError) as error:
        raise ClusterError(f"{stream.name} cannot be read: {error or type(error).__name__}") from error
    finally:
        with suppress(nats.errors.Error, OSError):
            await subscription.unsubscribe()
    return found
