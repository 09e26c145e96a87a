"""Between the engine and the store: what is kept, on a thread of its own."""
