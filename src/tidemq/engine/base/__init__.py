"""What stands on nothing else of the engine: system calls, clock, memory, counters, messages."""
