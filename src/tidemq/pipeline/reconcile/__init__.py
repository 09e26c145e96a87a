"""The queues of a cluster that was split, made one again from its nodes' dumps."""
