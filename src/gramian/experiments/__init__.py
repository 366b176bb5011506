"""Floor 4: the program, its server, its plots and its searches."""
