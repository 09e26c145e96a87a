"""A stream watched by rules: what they find is published."""
