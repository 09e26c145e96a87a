"""The command `tidemq`, as spark-submit takes it: `spark-submit … local:///opt/job.py pipeline ingest …`."""

from tidemq.cli import main

main()
