"""A schema registry of tests: what Confluent's documentation says of the questions that readers and writers
ask, over HTTP, or HTTPS with a certificate of the test's own.
"""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import trustme

Body = dict[str, Any]


class RegistryDouble:
    """Schemas by id, and by subject and version; what was asked of it is in `asked`."""

    def __init__(self) -> None:
        self.url = ""
        self.cafile = ""
        self.schemas: dict[int, Body] = {}  # as they were registered
        self.subjects: dict[str, list[int]] = {}  # ids by their versions
        self.asked: list[str] = []
        self.status = 0  # of every answer, in place of its own
        self.login = ""  # "user:password" that it wants
        self.serialized: dict[
            str, bytes
        ] = {}  # of Protobuf's texts their descriptors, as a registry makes them

    def add(self, subject: str, schema: str, kind: str = "AVRO", references: Any = ()) -> int:
        body = {"schema": schema, "schemaType": kind, "references": list(references)}
        ids = self.subjects.setdefault(subject, [])
        number = next((number for number, each in self.schemas.items() if each == body), 0)
        if not number:
            number = len(self.schemas) + 1
            self.schemas[number] = body
        if number not in ids:
            ids.append(number)
        return number

    def get(self, path: str, query: dict[str, list[str]]) -> tuple[int, Any]:
        if path == "/schemas/types":
            return 200, ["AVRO", "PROTOBUF", "JSON"]
        if found := re.fullmatch(r"/schemas/ids/(\d+)", path):
            if int(found[1]) not in self.schemas:
                return 404, {"error_code": 40403, "message": "Schema not found"}
            return 200, self._shown(int(found[1]), query)
        if found := re.fullmatch(r"/subjects/([^/]+)/versions/(\d+)", path):
            ids = self.subjects.get(unquote(found[1]), [])
            if int(found[2]) > len(ids):
                return 404, {"error_code": 40402, "message": "Version not found"}
            number = ids[int(found[2]) - 1]
            more = {"subject": unquote(found[1]), "version": int(found[2]), "id": number}
            return 200, self._shown(number, query) | more
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def post(self, path: str, body: Body) -> tuple[int, Any]:
        """What writers ask: to register a schema under a subject, and which version it is there."""
        if found := re.fullmatch(r"/subjects/([^/]+)(/versions)?", path):
            kind, subject = body.get("schemaType", "AVRO"), unquote(found[1])
            if kind == "PROTOBUF":  # of which writers may send the descriptor
                self.serialized[body["schema"]] = base64.b64decode(body["schema"])
            number = self.add(subject, body["schema"], kind, body.get("references") or ())
            version = self.subjects[subject].index(number) + 1
            more = {"subject": subject, "version": version, "schemaType": kind}
            return 200, {"id": number} if found[2] else {**body, **more, "id": number}
        return 404, {"error_code": 404, "message": "HTTP 404 Not Found"}

    def _shown(self, number: int, query: dict[str, list[str]]) -> Body:
        body = self.schemas[number]
        shown = {"schema": body["schema"]}
        if body["schemaType"] != "AVRO":  # which goes without saying
            shown["schemaType"] = body["schemaType"]
        if body["references"]:
            shown["references"] = body["references"]
        if query.get("format") == ["serialized"] and body["schemaType"] == "PROTOBUF":
            shown["schema"] = base64.b64encode(self.serialized[body["schema"]]).decode()
        return shown


@contextmanager
def registry_double(folder: Path | None = None) -> Iterator[RegistryDouble]:
    """By TLS, if there is a folder for the authority's certificate."""
    double = RegistryDouble()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(double)) as server:
        scheme = "http"
        if folder is not None:
            scheme, authority = "https", trustme.CA()
            double.cafile = str(folder / "authority.pem")
            authority.cert_pem.write_to_path(double.cafile)
            server.socket = tls(authority)(server.socket)
        double.url = f"{scheme}://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield double
        finally:
            server.shutdown()
            thread.join()


def tls(authority: trustme.CA) -> Callable[..., Any]:
    import ssl

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return lambda sock: context.wrap_socket(sock, server_side=True)


def _handler(double: RegistryDouble) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._answer(*double.post(urlsplit(self.path).path, body))

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            double.asked.append(self.path)
            wanted = f"Basic {base64.b64encode(double.login.encode()).decode()}"
            if double.login and self.headers["Authorization"] != wanted:
                self._answer(401, {"error_code": 401, "message": "Unauthorized"})
            elif double.status:
                self._answer(double.status, {"error_code": double.status, "message": "as the test wants"})
            else:
                self._answer(*double.get(parts.path, parse_qs(parts.query)))

        def _answer(self, status: int, said: Any) -> None:
            body = json.dumps(said).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/vnd.schemaregistry.v1+json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    return Handler
