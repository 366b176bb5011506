"""Results of ``python -m paper`` and runs of ``gramian train`` as tables, plots and one page."""
