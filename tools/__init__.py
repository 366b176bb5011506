"""Programs for those who publish the package; nothing of it is in the package."""
