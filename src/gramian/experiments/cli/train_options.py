"""The options of ``gramian train``, from typed dataclasses, files and the environment.

The command line comes first, then the environment, ``--config``, the preset, and the defaults.
"""

from __future__ import annotations

import argparse
import inspect
import json
import logging
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

import yaml
from jsonargparse import DefaultHelpFormatter, Namespace, get_loader

from gramian.experiments.cli.options import (
    Parser,
    UsageError,
    add_common_options,
    import_modules,
    on_one_line,
)
from gramian.train.presets import presets
from gramian.train.record.files import check_values
from gramian.train.run_settings import Kind, RunSettings

if TYPE_CHECKING:
    from gramian.train.config import TrainConfig
    from gramian.train.data import Splits

log = logging.getLogger("gramian")
Values = dict[str, Any]
KINDS: tuple[str, ...] = get_args(Kind)
FROM_DATA = {"image_shape", "num_features", "num_outputs"}
"""Settings of a model that the data decide, so that they are no options."""


@dataclass(frozen=True)
class Asked:
    """What decides which other options there are.

    Args:
        words: the command line without ``--config``, and with at most one ``--import``.
        values: of the files that ``--config`` names.
        preset: the file of a preset, or None.
        kind: of the model; None if nobody has said.
        data: the data set whose preset, or suitable settings, are to be taken; None for neither.
        data_dir: where it is stored.
        modules: to import first.
    """

    words: list[str]
    values: Values
    preset: Path | None
    kind: str | None
    data: str | None
    data_dir: str | None
    modules: list[str]


def parse_train(words: Sequence[str]) -> tuple[TrainConfig, Namespace, Splits | None]:
    """The settings of a run, all options, and the data if they had to be looked at."""
    from gramian.train.config import ConfigError, TrainConfig, check_settings
    from gramian.train.data import check_named
    from gramian.train.defaults import in_words

    asked = peek(words)
    if asked.kind is not None:
        check_kind(asked.kind)
    start = read_config(asked.preset) if asked.preset else {}
    splits = None
    if asked.preset is None and asked.data is not None:
        splits, start = suitable(asked)
    kind = asked.kind or start.get("kind", "conv")
    parser = train_parser(kind)
    check_settings(asked.values, kind, {action.dest for action in parser._actions}, "--")
    for values in (start, asked.values):
        given = parser.parse_object(values, env=False, defaults=False)
        parser.set_defaults(dict(given.items()))
    options = parser.parse_args(asked.words)
    refuse_nulls(parser, options)
    import_modules([*options["import"], *named_modules(options, asked.values)])
    if splits is None and options.data == asked.values.get("data"):
        check_named(options.data, options["import"])
    try:
        forget_bandwidths(options, start.get("model", {}))
        built = vars(parser.instantiate(options))
        names = TrainConfig.__dataclass_fields__
        config = TrainConfig(**{key: built[key] for key in built if key in names})
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if splits is not None and start:
        log.info(in_words(config.to_dict(), splits.train))
    return config, options, splits


def refuse_nulls(parser: Parser, options: Namespace) -> None:
    """A file may say null for any option; only some have a meaning for it."""
    for action in parser._actions:
        kind = getattr(action, "_typehint", None)
        if (
            kind is not None
            and type(None) not in get_args(kind)
            and options.get(action.dest) is None
        ):
            raise UsageError(f"--{action.dest} must not be null")


def forget_bandwidths(options: Namespace, start: Values) -> None:
    """Bandwidths of a preset are of its own kernel; another kernel may have none."""
    from gramian.nn.dkm_config import KernelConfig
    from gramian.nn.steps.kernels import Bandwidth

    names = [name for name in ("bandwidth", "output_bandwidth") if name in start]
    if not names or KernelConfig(kernel=options.model.kernel).kernel_class().has_bandwidth:
        return
    for name in names:
        if vars(options.model[name]) == start[name]:
            for part, value in vars(Bandwidth()).items():
                options.model[name][part] = value


def check_kind(kind: str) -> None:
    """Refuse a kind of model that there is not."""
    if kind not in KINDS:
        raise UsageError(f"unknown kind {kind!r}; known are {', '.join(KINDS)}")


def suitable(asked: Asked) -> tuple[Splits, Values]:
    """The data, and settings that suit them."""
    from gramian.train.data import check_named, load
    from gramian.train.defaults import settings_for

    assert asked.data is not None
    if asked.data == asked.values.get("data"):
        import_modules(asked.modules)
        check_named(asked.data, asked.modules)
    else:
        import_modules([*asked.modules, *_modules_of([asked.data])])
    splits = load(asked.data, asked.data_dir)
    return splits, settings_for(splits.train, asked.kind)


def run_parser(kind: str, environment: bool = False) -> Parser:
    """The parser without the options of the model, which need PyTorch."""
    parser = Parser(
        "train",
        "Train a model. Without options: handwritten digits. An option comes from the command "
        "line, else the environment (GRAMIAN_TRAIN__SEED=5), else --config, else --preset, else "
        f"its default. These are the options and defaults of --kind {kind}; --print_config shows "
        "what would be used.",
        default_env=environment,
        env_prefix="GRAMIAN_TRAIN_",
        print_config=None,
    )
    parser.add_argument("--config", type=str | None, default=None, help="YAML file with options")
    parser.add_argument(
        "--print_config", action="store_true", help="print all options as such a file, and stop"
    )
    parser.add_argument(
        "--preset",
        default="auto",
        help=f"options that come with the package: {', '.join(presets())}; auto takes the one with "
        "the data set's name, none takes none",
    )
    parser.add_class_arguments(RunSettings, None, as_group=False)
    describe(parser, RunSettings)
    parser.add_argument("--output", default="runs", help="folder of all runs")
    parser.add_argument("--name", type=str | None, default=None, help="name of this run's folder")
    parser.add_argument(
        "--resume", default="auto", help="auto: go on if the run's folder has a checkpoint; never"
    )
    parser.add_argument("--plots", type=bool, default=True, help="draw plots after training")
    parser.add_argument("--tensorboard", type=bool, default=False, help="write TensorBoard events")
    parser.add_argument("--dry_run", action="store_true", help="say what would be done, and stop")
    parser.add_argument(
        "--import",
        type=list[str],
        default=[],
        help="Python module to import first; may be given several times. The current folder is "
        "searched too. Modules of --model.kernel mymodule.MyKernel and the like need not be named.",
    )
    add_common_options(parser)
    return parser


def train_parser(kind: str, environment: bool = True) -> Parser:
    """The parser for a kind of model."""
    from gramian.train.config import MODEL_CONFIGS

    check_kind(kind)
    parser = run_parser(kind, environment)
    parser.add_class_arguments(MODEL_CONFIGS[kind], "model", skip=FROM_DATA)
    describe(parser, MODEL_CONFIGS[kind], "model.")
    return parser


def help_text(kind: str) -> str:
    """What ``gramian train --help`` shows."""
    parser = train_parser(kind, environment=False)
    parser.usage = "gramian train [options]"
    wide = partial(DefaultHelpFormatter, width=100, max_help_position=30)
    parser.formatter_class = wide  # type: ignore[assignment]
    return parser.format_help()


def as_file(options: Namespace) -> str:
    """All options as a file for ``--config``."""
    kept = options.clone()
    for key in ("config", "print_config", "import"):
        kept.pop(key)
    return train_parser(options.kind).dump(kept, format="yaml", skip_unset=False)


def describe(parser: Parser, settings: type, prefix: str = "") -> None:
    """Give the options of a dataclass the sentences of its docstring."""
    sentences, types = descriptions(settings), get_type_hints(settings)
    for group in parser._action_groups:
        if group.title == str(settings):
            group.title = f"--{prefix}*"
    for action in list(parser._actions):
        name = action.dest.removeprefix(prefix)
        if action.dest == prefix[:-1]:
            action.help = "YAML text or file with all of these"
        elif action.dest.startswith(prefix) and name in sentences:
            action.help = sentences[name]
            if is_dataclass(types[name]):
                describe(parser, types[name], f"{action.dest}.")


def descriptions(settings: type) -> dict[str, str]:
    """The sentence of each argument, from the docstrings of a class and of those it extends."""
    found: dict[str, str] = {}
    for base in settings.__mro__:
        _, _, text = (inspect.getdoc(base) or "").partition("\nArgs")
        for name, sentence in re.findall(r"^    (\w+): (.*(?:\n {5,}.*)*)", text, re.MULTILINE):
            found.setdefault(name, " ".join(sentence.replace("``", "").split()))
    return found


def peek(words: Sequence[str]) -> Asked:
    """Files, preset and kind of model, before any option is checked."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--config", action="append")
    parser.add_argument("--import", action="append", dest="modules")
    try:
        first, rest = parser.parse_known_args(_with_infinity(words))
        for name in ("preset", "data", "kind", "data_dir"):
            variable = os.environ.get(f"GRAMIAN_TRAIN__{name.upper()}")
            parser.add_argument(f"--{name}", default=variable)
        given, _ = parser.parse_known_args(rest)
    except argparse.ArgumentError as error:
        raise UsageError(str(error)) from error
    variable = os.environ.get("GRAMIAN_TRAIN__CONFIG")
    values: Values = {}
    for path in first.config or ([variable] if variable else []):
        values = _merged(values, read_config(path))
    if first.modules:
        rest.append(f"--import={json.dumps(first.modules)}")
    kind = given.kind or values.get("kind")
    name = given.preset or values.get("preset") or "auto"
    data = given.data or values.get("data")
    is_whole = {"kind", "model"} <= values.keys()  # as a run's config.yaml: nothing is added to it
    preset = _preset(name, data, kind, is_whole)
    if preset is not None:
        kind = kind or _kind_of(preset)
    return Asked(
        words=rest,
        values=values,
        preset=preset,
        kind=kind,
        data=None if is_whole or name != "auto" else data or "digits",
        data_dir=given.data_dir or values.get("data_dir"),
        modules=first.modules or [],
    )


def read_config(path: str | Path) -> Values:
    """The options in a YAML file, without those that the data decide."""
    try:
        values = get_loader("yaml")(Path(path).read_text(encoding="utf-8"))
        check_values(values)
    except (OSError, ValueError, yaml.YAMLError) as error:  # also what is not UTF-8
        raise UsageError(f"{path} cannot be read: {on_one_line(str(error))}") from error
    values = {} if values is None else values
    if not isinstance(values, dict):
        raise UsageError(
            f"{path} must hold options as `name: value`, but is a {type(values).__name__}"
        )
    for key in ("preset", "data", "kind"):
        if not isinstance(values.get(key, ""), str):
            raise UsageError(f"{path}: {key} must be a text, got {values[key]}")
    if values.get("import"):
        raise UsageError(
            f"{path}: a file imports no modules, got {values['import']}: name them by --import"
        )
    if "model" in values:
        model = values["model"]
        if not isinstance(model, dict):
            raise UsageError(f"{path}: model must hold options, got {model}")
        values["model"] = {key: model[key] for key in model if key not in FROM_DATA}
    return values


def named_modules(options: Namespace, from_files: Values) -> list[str]:
    """The modules of things that the user names by a path, such as ``mymodule.MyKernel``.

    What a file names is not imported.
    """
    model = from_files.get("model", {})
    names = {options.data} - {from_files.get("data")}
    for key in ("kernel", "likelihood", "layer"):
        names |= {options.get(f"model.{key}")} - {model.get(key)}
    return _modules_of(sorted(name for name in names if name))


def _modules_of(names: Sequence[str]) -> list[str]:
    """Of names that are import paths, and not files."""
    dotted = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)+")
    return [
        name.rpartition(".")[0]
        for name in names
        if dotted.fullmatch(name)
        if not name.endswith(".npz") and not Path(name).exists()
    ]


def _preset(name: str, data: str | None, kind: str | None, is_whole: bool) -> Path | None:
    """The file of the preset that is asked for, or that has the name of the data."""
    known = presets()
    if name == "auto":
        data = data or ("none" if is_whole else "digits")
        name = data if data in known else "none"
        if name != "none" and kind not in (None, _kind_of(known[name])):
            return None  # it is for another kind of model
    if name != "none" and name not in known:
        raise UsageError(f"unknown preset {name!r}; known are {', '.join(known)}")
    return None if name == "none" else known[name]


def _kind_of(preset: Path) -> str:
    kind: str = read_config(preset).get("kind", "conv")
    return kind


def _merged(first: Values, second: Values) -> Values:
    """Both, where the second counts."""
    both = {**first, **second}
    for key in first.keys() & second.keys():
        if isinstance(first[key], dict) and isinstance(second[key], dict):
            both[key] = _merged(first[key], second[key])
    return both


def _with_infinity(words: Sequence[str]) -> list[str]:
    """``--model.nu inf`` as YAML writes it, .inf."""
    return [
        re.sub(r"^(--model\.[\w.]+=|)(\+?)inf$", r"\1\2.inf", word)
        if (before + word).startswith("--model.")
        else word
        for before, word in zip(["", *words], words, strict=False)
    ]
