"""One file a command: options in, a result on standard output."""
