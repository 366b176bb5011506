"""The paper's tables, figures and numbers, each by one command: ``python -m paper list``."""
