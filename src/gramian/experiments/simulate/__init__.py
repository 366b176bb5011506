"""What a model would cost, from its shapes alone: nothing of its size is stored or computed."""
