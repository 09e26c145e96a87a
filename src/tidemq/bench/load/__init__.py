"""The load generator: compiled, one thread without the GIL, and the connections that it has."""
