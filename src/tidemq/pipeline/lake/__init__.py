"""Tables that a stream is brought into, each message once."""
