"""A search over the settings of a run, by validation, on Optuna."""
