"""``python -m gramian`` is the program ``gramian``."""

import sys

from gramian.experiments.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
