"""Make a model that comes with the package of a finished run: its files and its model card.

`python examples/pretrained.py RUN NAME` writes src/gramian/train/pretrained/NAME.
"""

import argparse
import json
import shutil
from pathlib import Path
from typing import Any

from gramian import Predictor
from gramian.experiments.explanations.comparison import Usual
from gramian.train.config import config_from_dict
from gramian.train.data import load
from gramian.train.presets import presets
from gramian.train.record.files import write_text_atomically

FOLDER = Path("src/gramian/train/pretrained")
MOST_BYTES = 2_000_000

DATA = {
    "digits": "UCI optical recognition of handwritten digits, as scikit-learn has them: 8×8 grey",
    "fashion_mnist": "Fashion-MNIST (Xiao et al. 2017, MIT licence): photographs of clothes, 28×28 "
    "grey, light on black",
    "cifar10": "CIFAR-10 (Krizhevsky 2009): small photographs of ten kinds of things, 32×32 RGB",
}
LIMITS = {
    "digits": "Digits that fill the picture, light on black. Letters, or digits drawn small or off "
    "the middle, are nothing that it knows.",
    "fashion_mnist": "One piece of clothing in the middle of a black picture. Photographs with a "
    "background are nothing that it knows.",
    "cifar10": "One thing of the ten kinds in the middle of the picture. Anything else gets one of "
    "the ten names too: look at `strangeness`. The labels and pictures are those of CIFAR-10, with "
    "its choice of the world.",
}


def card(name: str, config: Any, facts: dict[str, Any], result: dict[str, Any], size: int) -> str:
    """The model card."""
    test = result["metrics"]["test"]
    rows = {
        "Data": DATA[name],
        "Command": f"`gramian train --data {name}{differences(name, config)}`",
        "Commit": facts["commit"],
        "Seed": config.seed,
        "Training": f"{config.max_epochs} epochs, {result['train_seconds']:.0f} s of wall time of "
        "one thread beside other work",
        "File": f"{size:,} bytes, {facts['parameters']:,} parameters",
        "Test accuracy": f"{test['accuracy']:.2%} (n = 1 model, {test['num']:,.0f} images)",
        "Test log-likelihood": f"{test['log_likelihood']:.4f}",
        "Calibration error": f"{test['ece']:.4f}",
    }
    table = "\n".join(f"| {key} | {value} |" for key, value in rows.items())
    return (
        f"# pretrained:{name}\n\nA convolutional deep kernel machine.\n\n"
        f"| | |\n|---|---|\n{table}\n\n"
        f"**Limits.** {LIMITS[name]} Made to try the program, the page and the docs; small on "
        "purpose. Not tested for anything that matters to a person.\n\n"
        f"    gramian predict pretrained:{name} mine.png\n    gramian serve pretrained:{name}\n"
    )


def differences(name: str, config: Any) -> str:
    """Options that differ from the preset of the data."""
    import yaml

    before = config_from_dict(yaml.safe_load(presets()[name].read_text())).to_dict()["model"]
    after = config.to_dict()["model"]
    sizes = {"image_shape", "num_outputs", "likelihood"}  # those of the data
    words = [
        f" --model.{key} {str(value).replace(' ', '')}"
        for key, value in after.items()
        if before[key] != value and key not in sizes
    ]
    return "".join(words)


def main() -> None:
    """Copy and describe."""
    import yaml

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("run", type=Path)
    parser.add_argument("name", choices=DATA)
    options = parser.parse_args()
    config = config_from_dict(yaml.safe_load((options.run / "config.yaml").read_text()))
    facts = json.loads((options.run / "env.json").read_text())
    result = json.loads((options.run / "result.json").read_text())
    folder = FOLDER / options.name
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(options.run / "config.yaml", folder / "config.yaml")
    shutil.copytree(options.run / "model", folder / "model", dirs_exist_ok=True)
    predictor = Predictor.from_pretrained(folder)
    size = (folder / "model" / "model.safetensors").stat().st_size
    if size > MOST_BYTES:
        raise SystemExit(f"the model has {size:,} bytes, more than {MOST_BYTES:,}")
    Usual.of(predictor, load(config.data).test.x).save(folder, f"{config.data}, test")
    facts["parameters"] = sum(p.numel() for p in predictor.model.parameters())
    text = card(options.name, config, facts, result, size)
    write_text_atomically(folder / "README.md", text)
    print(text)


if __name__ == "__main__":
    main()
