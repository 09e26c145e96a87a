"""Messages into rows, by the rules that say how payloads are decoded."""
