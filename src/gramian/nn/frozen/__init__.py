"""Models for prediction only: what does not depend on the data is computed once."""
