"""What training the paper's model would cost, from shapes alone."""
