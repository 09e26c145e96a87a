"""Breaks of what engine/link relies on."""

from __future__ import annotations

from assertions.planted import Break

PLANTED: list[Break] = []
