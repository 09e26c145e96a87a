"""The admin listener, over HTTP."""
