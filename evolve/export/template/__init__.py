"""What runs in an exported package. Copied there with everything it imports, so it imports nothing else of `evolve`."""
