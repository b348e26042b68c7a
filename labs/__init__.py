"""What people do with the engine: the command line, the tour, labs and experiments."""
