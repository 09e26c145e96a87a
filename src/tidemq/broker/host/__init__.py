"""What the machine has for a broker: its user, systemd, files that change, its clock."""
