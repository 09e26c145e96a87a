"""Who may do what: the engine's questions answered, files of rules, and who the connected clients are."""
