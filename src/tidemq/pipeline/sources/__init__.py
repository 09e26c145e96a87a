"""Spark's data sources: a broker's stream, any broker's messages, and rows as messages."""
