"""Bridges of a broker: their way in (`door`), and all of them together (`bridges`)."""
