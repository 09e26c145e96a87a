"""What results of load tests look like: as text, in files, as tables, plots and pages.

`terminal` needs nothing but this; `files` and `runs` need pyarrow, `figures` and `page` matplotlib besides
(`pip install 'tidemq[bench]'`). So nothing is imported here.
"""
