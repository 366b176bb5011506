"""Where and how a run computes: devices, processes, randomness, signals, precision."""
