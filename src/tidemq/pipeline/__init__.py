"""The pipeline on Spark: what devices publish, from a broker's streams into tables.

Imports of the parts below need pyspark (`pip install 'tidemq[pipeline]'`); docs/pipeline.md shows their use.
"""
