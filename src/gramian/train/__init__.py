"""Floor 3: one experiment, from data to a trained model."""
