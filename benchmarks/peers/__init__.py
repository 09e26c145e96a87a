"""The brokers that are compared: one module each, which starts the broker and stops it."""
