"""What plugins get and answer, how they are found, and how they are called: in batches, bounded in time."""
