"""From Mosquitto: its configuration, users, rules and messages, as those of TideMQ."""
