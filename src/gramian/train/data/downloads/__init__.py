"""Data sets that are fetched: sources, formats, digests and storage."""
