"""The broker at the other end: its address, what it says, and a peer that parses nothing."""
