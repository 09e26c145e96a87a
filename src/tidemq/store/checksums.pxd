"""Checksums of the logs that RocksDB and SQLite write ahead."""
