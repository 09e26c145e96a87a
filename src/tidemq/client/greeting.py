"""What a client says of itself: its CONNECT and its DISCONNECT."""

from __future__ import annotations

from dataclasses import replace

from tidemq.client.address import Address
from tidemq.client.settings import Settings
from tidemq.wire import Connect, Disconnect, Properties


def make_connect(settings: Settings, address: Address, client_id: str, *, clean_start: bool) -> Connect:
    """Settings go before the address, that before the authentication method."""
    auth_username = None if settings.auth is None else settings.auth.username
    username = settings.username if settings.username is not None else address.username
    password = settings.password if settings.password is not None else address.password
    return Connect(
        version=settings.version,
        client_id=client_id,
        clean_start=clean_start,
        keep_alive_s=settings.keep_alive_s,
        will=settings.will,
        username=username if username is not None else auth_username,
        password=password.encode() if isinstance(password, str) else password,
        properties=settings.connect_properties(),
    )


def make_disconnect(
    settings: Settings, reason: int, properties: Properties, *, ends_session: bool
) -> Disconnect:
    """The session ends with it where the client says so, and the properties say nothing else."""
    if settings.version != 5:
        return Disconnect()
    if ends_session and properties.session_expiry_s is None and settings.session_expiry_s:
        properties = replace(properties, session_expiry_s=0)
    return Disconnect(reason=reason, properties=properties)
