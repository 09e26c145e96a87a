"""Messages on their way to sessions: routing, delivery, outboxes, shared groups, retained messages."""
