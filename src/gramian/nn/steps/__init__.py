"""The steps of a layer, in the order in which the data meet them."""
