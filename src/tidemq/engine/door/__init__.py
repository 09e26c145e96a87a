"""The way in and out for Python: the façade, its events, the side of the keeper."""
