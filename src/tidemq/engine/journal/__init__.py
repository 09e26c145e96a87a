"""What is to be stored, in sections, and what publishers are owed for it."""
