"""A listener of Mosquitto's as a table of `listeners`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tidemq.config import refused
from tidemq.migration.lines import Line
from tidemq.migration.output import Output, absolute, join_certificates, read_file
from tidemq.migration.sections import Section

_VERSIONS = {"3": "3.1", "4": "3.1.1", "5": "5.0"}
_PORT = 1883
_LOCAL = ("127.0.0.1", "::1")
_ANY = {"ipv4": "0.0.0.0", "ipv6": "::"}


def plan_listener(section: Section, output: Output, *, local_only: bool = False) -> list[dict[str, Any]]:
    """The tables: more than one where the address is several. Without the authenticator. `local_only`: it is
    for clients of this machine.
    """
    table: dict[str, Any] = {}
    places = _places(section, output, "localhost" if local_only else "")
    if (versions := section.text("accept_protocol_versions")) is not None:
        words = versions.replace(",", " ").split()
        table["protocol_versions"] = [_VERSIONS[word] for word in words if word in _VERSIONS]
    if (most := section.number("max_connections")) is not None and most > 0:
        table["connections_max"] = most
    if (qos := section.number("max_qos", "maximum_qos")) is not None:
        table["qos_max"] = qos
    if section.text("enable_proxy_protocol") is not None:
        table["proxy_protocol"] = True
    tls = _plan_tls(section, output)
    if tls:
        table["tls"] = tls
    if (protocol := section.get("protocol")) is not None:
        _plan_protocol(section, protocol, table)
    aliases = section.number("max_topic_alias")
    if aliases is not None:
        known = output.config.get("limits", {}).get("topic_alias_max", 0)
        output.limit("topic_alias_max", max(known, aliases))
    return [place | table for place in places]


def _places(section: Section, output: Output, host: str) -> list[dict[str, Any]]:
    """Where it listens; at this host if no line says it."""
    domain = section.word("socket_domain")
    line, alone = section.get("listener"), section.get("port")
    bound = section.get("bind_address")
    if line is not None:
        port, *words = line.value.split() or [""]
        address = "".join(word for word in words[:1] if not word.startswith("#"))
        section.note(line)
    else:
        port, address = alone.word if alone is not None else str(_PORT), ""
        if alone is not None:
            section.note(alone)
    if bound is not None:
        section.note(bound)
        address = address or bound.value
    if address and (port == "0" or address.startswith("/")):
        return [{"path": str(Path(address).absolute())}]
    if section.has("bind_interface"):
        address = address or _LOCAL[0]  # not on the others
    if not port.isascii() or not port.isdigit() or not int(port):
        said = line or alone
        place = said.place if said is not None else ""
        raise refused(place, "listener", f"{port!r} is refused", ["a port, 1 to 65535"])
    address = address or host
    if address == "localhost":
        hosts = _LOCAL if output.has_ipv6() else _LOCAL[:1]
        return [{"host": host, "port": int(port)} for host in hosts]
    if not address:
        address = _ANY.get(domain or "", "::" if output.has_ipv6() else "0.0.0.0")
    return [{"host": address, "port": int(port)}]


def _plan_protocol(section: Section, line: Line, table: dict[str, Any]) -> None:
    if line.word == "mqtt":
        section.note(line, "as it is")
    elif line.word == "websockets":
        web: dict[str, Any] = {"path": "*"}
        origins = section.all("websockets_origin")
        web["origins"] = [each.value for each in origins] or ["*"]
        for each in (line, *origins):
            section.note(each)
        if not origins:
            section.change(line, "pages of all origins may connect, as before: name yours in "
                           "`websocket.origins`")  # fmt: skip
        table["websocket"] = web
    else:
        section.refuse(line, f"TideMQ knows no protocol {line.word!r}")


def _plan_tls(section: Section, output: Output) -> dict[str, Any]:
    """The table `tls`; empty: there is none."""
    cert, key = section.get("certfile"), section.get("keyfile")
    if cert is None:
        for option in ("keyfile", "cafile", "capath", "require_certificate", "tls_version"):
            if (line := section.get(option)) is not None:
                section.change(line, "without `certfile` there is no TLS, with Mosquitto neither")
        return {}
    section.note(cert)
    tls: dict[str, Any] = {"cert": str(absolute(cert))}
    if key is not None:
        section.note(key)
        tls["key"] = str(absolute(key))
    _plan_client_certificates(section, output, tls)
    if (version := section.get("tls_version")) is not None:
        if version.value == "tlsv1.3":
            section.note(version)
            tls["version_min"] = "1.3"
        elif version.value == "tlsv1.2":
            section.note(version)
        else:
            section.change(version, "TLS below 1.2 is not spoken: clients that know no other do not connect")
    return tls


def _plan_client_certificates(section: Section, output: Output, tls: dict[str, Any]) -> None:
    """`client_ca`, `client_cert` and `crl`, where clients are asked for certificates."""
    wanted = section.flag("require_certificate", False)
    authorities, folder, crl = section.get("cafile"), section.get("capath"), section.get("crlfile")
    if not wanted:
        for line in (authorities, folder, crl):
            if line is not None:
                section.change(line, "no client is asked for a certificate, so that it is not needed")
        return
    if authorities is not None and folder is None:
        tls["client_ca"] = str(absolute(authorities))
        section.note(authorities)
    elif folder is not None:
        content = join_certificates(folder)
        if authorities is not None:
            content += read_file(authorities)
            section.note(authorities)
        tls["client_ca"] = str(output.keep("clients-ca.pem", content))
        section.change(folder, f"its certificates are in {tls['client_ca']}: later changes of the directory "
                       "have to be made there")  # fmt: skip
    tls["client_cert"] = "required"
    if crl is not None:
        tls["crl"] = str(absolute(crl))
        section.note(crl)
