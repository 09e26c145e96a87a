"""Plugins that come with the broker: by their names in `[[plugins]]`, or as any other in a program."""
