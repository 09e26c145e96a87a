"""Layout of what the data plane holds, by owner, and the smallest looks at it."""
