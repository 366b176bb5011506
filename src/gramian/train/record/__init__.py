"""What a run leaves behind: files, checkpoints, metrics, progress."""
