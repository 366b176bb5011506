"""The same numbers in fewer passes over memory."""
