"""Public names of the engine's histograms, in the order of ``histograms.pxd``."""

import cython
from cython.cimports.tidemq.engine.base.histograms import HISTOGRAM_COUNT

NAMES = ("turn", "publish_qos_1", "publish_qos_2", "queued", "connect")

_count: cython.int = HISTOGRAM_COUNT
if len(NAMES) != _count:
    raise ImportError("histograms.py and histograms.pxd name different histograms")
