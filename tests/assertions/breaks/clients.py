"""Breaks of what engine/clients relies on."""

from __future__ import annotations

from assertions.planted import Break

PLANTED: list[Break] = []
