"""A trained model that meets raw data: predictions, metrics, export."""
