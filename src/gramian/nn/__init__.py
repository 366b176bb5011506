"""Floor 2: modules that map Gram blocks to Gram blocks, in the order the data meets them.

Each step has two halves: ``inducing`` works on the inducing block alone and ``data`` carries the
data along. ``forward`` is one after the other. The model runs all ``inducing`` halves first (the
inducing chain, which does not depend on the data) and then the ``data`` halves.
"""
