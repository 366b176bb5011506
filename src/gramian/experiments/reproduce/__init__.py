"""The paper's tables, from settings to results."""
