"""Workers: each runs one implementation in a process, and where needed an environment, of its own."""
