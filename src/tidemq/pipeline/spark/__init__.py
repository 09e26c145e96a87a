"""Spark itself: its Java, a session, jobs that go on, and whether all that they need is there."""
