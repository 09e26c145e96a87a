"""Who receives what: the trees of filters and of retained topics, and the rules."""
