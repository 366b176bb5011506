"""Result folders of ``gramian reproduce`` as tables, figures and one page."""
