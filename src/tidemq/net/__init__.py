"""What lies between a socket and MQTT: TLS, WebSocket. Bytes in, bytes out; no I/O, no GIL."""
