"""Streams: what matches their filters is kept on disk in order, under ascending offsets, to be read again."""

from tidemq.stream.log import Extent, StreamLog
from tidemq.stream.streams import Stream, Streams

__all__ = ["Extent", "Stream", "StreamLog", "Streams"]
