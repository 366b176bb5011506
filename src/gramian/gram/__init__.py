"""Floor 1: the mathematics of Gram matrices on tensors. No modules, no settings, no files."""
