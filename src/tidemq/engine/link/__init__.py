"""What joins a reactor to sockets, to other reactors and to time."""
