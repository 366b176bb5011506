"""Results of ``gramian reproduce`` and runs of ``gramian train`` as tables, plots and one page."""
