"""Bridges to other brokers: what crosses, without I/O (`relay`), over two connections (`crossing`), kept up
(`upkeep`). Docs: docs/bridge.md."""
