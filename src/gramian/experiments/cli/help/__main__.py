"""Write the stored help texts anew."""

from gramian.experiments.cli.help import help_file
from gramian.experiments.cli.train_options import help_text
from gramian.train.config import MODEL_CONFIGS

for kind in MODEL_CONFIGS:
    help_file(kind).write_text(help_text(kind), encoding="utf-8")
