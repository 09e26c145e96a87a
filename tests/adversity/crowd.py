"""Very many publishers: a process of their own, because a process may have only so many sockets.

    python -m adversity.crowd PORT COUNT

For a line on standard input, a topic, everybody publishes to it at QoS 1, one after the other. For the next
one everybody sends a ping, and a line goes out when all have both answers, as when all are connected.
"""

from __future__ import annotations

import socket
import sys

from conformance.packets import PING, connect, publish
from waiting import WAIT_S

CONNACK_BYTES = 4
ANSWERS_BYTES = 4 + 2  # PUBACK and PINGRESP, in any order


def joined(port: int, number: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port), timeout=WAIT_S)
    sock.sendall(connect(f"crowd{number}", 4, keep_alive_s=0))
    return sock


def take(sock: socket.socket, size: int) -> None:
    while size:
        piece = sock.recv(size)
        assert piece, "a connection was closed"
        size -= len(piece)


def main(port: int, count: int) -> None:
    crowd = [joined(port, number) for number in range(count)]
    for sock in crowd:
        take(sock, CONNACK_BYTES)
    print("joined", flush=True)
    for topic in sys.stdin:
        for sock in crowd:
            sock.sendall(publish(topic.strip(), b"x", 1, 1, 4))
        sys.stdin.readline()
        for sock in crowd:
            sock.sendall(PING)
        for sock in crowd:
            take(sock, ANSWERS_BYTES)
        print("answered", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
