"""Pages and pictures of load runs, from the Parquet files that they left.

`runs` reads the files, `tables` makes rows of text, `figures` draws, `page` puts all into one HTML file.
Needs matplotlib and pyarrow (`pip install 'tidemq[bench]'`).
"""

from tidemq.bench.report.page import write_report

__all__ = ["write_report"]
