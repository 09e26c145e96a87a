"""What the broker shows of itself: metrics, alarms, whether it is alive, its clients."""
