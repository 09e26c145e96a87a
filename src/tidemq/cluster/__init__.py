"""Several nodes as one broker: what every node keeps, and how it stays the same on all of them."""
