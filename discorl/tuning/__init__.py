"""Many runs: over seeds and rules, or in search of settings. Each run is a process of its own."""
