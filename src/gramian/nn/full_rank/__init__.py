"""Models without inducing points: every training point has its row in every Gram matrix."""
