"""The program ``gramian``."""
