"""A trained model behind HTTP: a page to try it, and a JSON interface for programs."""
