"""Floor 4: the program, and the experiments of the paper."""
