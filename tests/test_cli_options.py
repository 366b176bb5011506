"""Options of the program: help, where they come from, and values without a meaning."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from jaxtyping import TypeCheckError
from jsonargparse import get_loader

from gramian import Bandwidth, __version__
from gramian.experiments.cli.commands import (
    data,
    evaluate,
    explain,
    export,
    help,
    info,
    predict,
    serve,
    tune,
)
from gramian.experiments.cli.commands import map as map_command
from gramian.experiments.cli.main import COMMANDS, main
from gramian.experiments.cli.options import Parser, UsageError
from gramian.experiments.cli.train_help import check_words, help_file, model_options
from gramian.experiments.cli.train_options import (
    descriptions,
    help_text,
    parse_train,
    peek,
    train_parser,
)
from gramian.train.config import MODEL_CONFIGS, ConfigError, TrainConfig, config_from_dict
from gramian.train.data import DataError

PARSERS = {
    "data": data.data_parser,
    "evaluate": evaluate.evaluate_parser,
    "explain": explain.explain_parser,
    "export": export.export_parser,
    "help": help.help_parser,
    "info": info.info_parser,
    "map": map_command.map_parser,
    "predict": predict.predict_parser,
    "serve": serve.serve_parser,
    "tune": tune.tune_parser,
}
HEAVY = ("torch", "numpy", "scipy", "sklearn", "lightning_fabric", "matplotlib")


def error_line(capsys, *words: str, code: int = 2) -> str:
    """The one line that a mistake prints; nothing else but the line that names the program."""
    got = main([*words, "--quiet"])
    out, err = capsys.readouterr()
    assert (got, out) == (code, ""), err
    assert len(err.splitlines()) == 1, err
    return err


# ---- help ----


def test_help_of_any_command_loads_nothing_heavy():
    script = f"""
import sys
from gramian.experiments.cli.main import COMMANDS, main
main(["--help"])
doors = [[name, "--help"] for name in COMMANDS] + [["train", "--helo"],
    ["train", "--kind", "dense", "--help"], ["train", "--preset", "sine", "-h"], ["evaluate"]]
codes = [main(words) for words in doors]
assert codes == [0] * len(COMMANDS) + [2, 0, 0, 2], codes
assert not sys.modules.keys() & {set(HEAVY)!r}, sys.modules.keys() & {set(HEAVY)!r}
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: gramian predict" in done.stdout
    assert "lengthscales" in done.stdout


def test_a_refused_option_loads_nothing_heavy(tmp_path):
    """Unknown names, wrong types and values out of range, of each command."""
    np.savez(tmp_path / "t.npz", x=np.zeros((4, 2)), y=np.arange(4.0))
    of_train = [
        ["--lr", "fast"], ["--lr=0"], ["--seed", "1.5"], ["--betas", "[2,2]"], ["--device", "gpu"],
        ["--kind", "graph"], ["--dry_run", "true"], ["--optimiser", "lion"], ["--train_size", "0"],
        ["--model.nu", "-1"], ["--model.nuu", "1"], ["--model.num_inducing", "32,64"],
        ["--model.num_inducing", "[0]"], ["--model.skr.jitter", "-1"], ["--model.norm.data", "x"],
        ["--kind", "dense", "--model.num_inducing", "[3]"], ["--model.whitening", "some"],
        ["--kind", "dense", "--model.pooling", "mean"], ["--lr_factors.output", "-1"],
        ["--data", "t.npz", "--model.num_inducing", "0"], ["--preset", "x"], ["--config", "x"],
    ]  # fmt: skip
    doors = [[command, *words] for words in of_train for command in ("train", "tune")] + [
        ["tune", "--plots", "false"], ["tune", "--trials", "0"], ["evaluate", "x", "--device", "g"],
        ["predict", "x", "y", "--batch_size", "0"], ["serve", "x", "--port", "99999"],
        ["map", "x", "--points", "2"], ["explain", "x"], ["export", "x", "--format", "png"],
        ["data", "fetch"], ["info", "--helo"], ["reproduce", "table9"], ["report"], ["bench"],
    ]  # fmt: skip
    script = f"""
import sys
from gramian.experiments.cli.main import main
for words in {doors!r}:
    assert main(words) == 2, words
    loaded = sys.modules.keys() & {set(HEAVY) | {"optuna"}!r}
    assert not loaded, (words, loaded)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == len(doors)


def test_what_the_quick_checks_let_pass_is_what_the_settings_take(monkeypatch):
    """No value that can be trained with is refused before PyTorch is loaded."""
    for kind in MODEL_CONFIGS:
        types = model_options(kind)
        hints = {a.dest: getattr(a, "_typehint", None) for a in train_parser(kind)._actions}
        assert types == {name: hints[name] for name in types}
        assert types.keys() == {name for name in hints if name.startswith("model.") and hints[name]}
    for words in (
        ["--model.nu", "inf"], ["--lr_factors", "{mixing: 2}"], ["--model", "{nu: 3}"], ["--quiet"],
        ["--output", "runs", "--resume", "never"], ["--import", "a", "--import", "b"], ["--seed=0"],
        ["--data", "own.npz", "--model.num_inducing", "[3,4]"], ["--model.whitening", "patches"],
        ["--data", "own.npz", "--model.num_inducing", "34"], ["--model.weight_var", "null"],
        ["--kind", "dense", "--model.num_layers", "0"], ["--train_size", "null"],
    ):  # fmt: skip
        check_words(words)


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="its argparse writes a line another way")
@pytest.mark.parametrize("kind", MODEL_CONFIGS)
def test_the_stored_help_is_that_of_the_parser(kind):
    stored = help_file(kind).read_text(encoding="utf-8")
    assert stored == help_text(kind), "run: python -m gramian.experiments.cli.train_help"


def test_every_command_has_a_parser_that_is_tested_here():
    assert {*PARSERS, "train"} == set(COMMANDS)


@pytest.mark.parametrize("name", [*PARSERS, *(f"train {kind}" for kind in MODEL_CONFIGS)])
def test_every_option_has_a_sentence_and_its_default(name):
    kind = name.partition(" ")[2]
    parser = train_parser(kind, environment=False) if kind else PARSERS[name]()
    for action in parser._actions:
        assert action.help, action.dest
    if kind:
        text = " ".join(help_text(kind).replace("log-\n", "log-").split()).replace("log- ", "log-")
        assert "30 %, then cosine)" in text
        for action in parser._actions:
            if getattr(action, "_typehint", None):
                assert f"{' '.join(action.help.split())} (type: " in text, action.dest
        assert text.count("default: ") >= len(parser._actions) - 9  # groups, --help


def test_sentences_come_from_the_class_and_those_it_extends():
    class First:
        """One.

        Args:
            a: first
                of all.
            b: ``second``.
        """

    class Second(First):
        """Two.

        Args (besides those of First):
            b: other.
        """

    assert descriptions(Second) == {"a": "first of all.", "b": "other."}


def test_work_is_announced_before_pytorch_is_loaded(capsys, monkeypatch):
    script = """
import logging, sys
from gramian.experiments.cli.main import main
class Loaded(Exception): pass
class Watch:
    def find_spec(self, name, *rest):
        if name == "torch": raise Loaded
sys.meta_path.insert(0, Watch())
assert main(["train", *sys.argv[1:]]) == 1
"""
    for words, announced in ([], True), (["--quiet"], False):
        done = subprocess.run(
            [sys.executable, "-c", script, *words], capture_output=True, text=True
        )
        assert done.stderr.startswith(f"gramian {__version__}") == announced, done.stderr
        assert done.stdout == ""


# ---- mistakes ----


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("lr: null", "lr"),
        ("betas: null", "betas"),
        ("momentum: null", "momentum"),
        ("model: {nu: null}", "model.nu"),
        ("model: {skr: {jitter: null}}", "model.skr.jitter"),
    ],
)
def test_null_is_for_options_that_have_a_meaning_for_it(capsys, tmp_path, text, name):
    (tmp_path / "settings.yaml").write_text(text)
    line = error_line(capsys, "train", "--config", str(tmp_path / "settings.yaml"))
    assert f"--{name} must not be null" in line
    with pytest.raises((ConfigError, TypeCheckError)):
        config_from_dict(yaml.safe_load(text))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train", "--max_epoch", "3"], "unknown option --max_epoch; did you mean --max_epochs?"),
        (["train", "--lr", "fast"], "--lr: expected float, got fast"),
        (["train", "--lr"], "argument --lr: expected one argument"),
        (["train", "--seed", "1.5"], "--seed: expected int, got 1.5"),
        (["train", "--flip", "maybe"], "--flip: expected bool, got maybe"),
        (["train", "--betas", "[2]"], "--betas: expected tuple with 2 elements, got [2]"),
        (
            ["train", "--model.skr.gamma_fraction", "x"],
            "gamma_fraction: expected float or null, got x",
        ),
        (["train", "digits"], "unexpected word 'digits': options begin with --"),
        (["train", "--dry_run", "true"], "--dry_run takes no value, got true: give it alone"),
        (["train", "--dry_run=true"], "--dry_run takes no value, got true"),
        (["evaluate", "x", "--json", "false"], "--json takes no value, got false"),
        (["tune", "--dry_run", "true"], "--dry_run takes no value, got true"),
        (
            ["train", "--model.num_inducing", "32,64"],
            "--model.num_inducing: expected a list such as '[32,64]', got 32,64",
        ),
        (["train", "--betas", "0.9"], "--betas: expected a list such as '[0.9]', got 0.9"),
        (["train", "--kind", "graph"], "unknown kind 'graph'"),
        (["train", "--model.image_shape", "[1,1,1]"], "unknown option --model.image_shape"),
        (["train", "--data", ""], "data must be the name of a data set or a path, got ''"),
        (["train", "--device", "cuda:7"], "device must be auto, cpu, cuda, mps, got 'cuda:7'"),
        (["train", "--device", "cuda"], "device cuda is not available here"),
        (["train", "--memory", "much"], "memory must be a number of bytes"),
        (["train", "--import", "no_such_module"], "--import no_such_module"),
        (["train", "--model.kernel", "no_such_module.Kernel"], "--import no_such_module"),
        (["evaluate"], "model"),
        (["evaluate", "x", "--split", "both"], "both"),
        (["evaluate", "x", "--device", "gpu"], "device must be auto, cpu, cuda, mps, got 'gpu'"),
        (["evaluate", "x", "--import", "no_such_module"], "--import no_such_module"),
        (["predict", "x", "y", "--device", "cuda"], "device cuda is not available here"),
        (["predict", "x", "y", "--batchsize", "3"], "did you mean --batch_size?"),
        (["export", "x", "--format", "png"], "png"),
    ],
)
def test_a_mistake_is_one_line_that_points_to_help(capsys, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    line = error_line(capsys, *words)
    assert message in line
    read_on = rf"\(see gramian {words[0]} --help; docs/ERRORS.md#(usage|config)error\)\n"
    assert re.search(read_on + "$", line)
    assert not list(tmp_path.iterdir())


SENSELESS = {
    "train_size": ["0", "-3"],
    "validation_fraction": ["1", "-0.1", ".nan"],
    "split_seed": ["-1"],
    "crop_padding": ["-1"],
    "max_epochs": ["0", "-1"],
    "batch_size": ["0", "-1"],
    "lr": ["0", "-1", ".inf", ".nan"],
    "betas": ["[2,2]", "[-0.1,0.9]", "[0.9,1]"],
    "momentum": ["-5", "1", ".nan"],
    "weight_decay": ["-1", ".inf"],
    "milestones": ["[0.5,1.5]", "[0]", "[.nan]"],
    "seed": ["-1"],
    "devices": ["0"],
    "num_nodes": ["0"],
    "accumulate": ["0"],
    "max_numerical_errors": ["-1"],
    "evaluate_every": ["0", "-2"],
    "patience": ["-1", "0"],
    "checkpoint_minutes": ["-1", ".nan"],
    "model.weight_var": ["0", "-1", ".inf"],
    "model.bias_var": ["0", "-1", ".nan"],
    "model.kernel_jitter.relative": ["-1", ".inf"],
    "model.kernel_jitter.absolute": ["-1", ".nan"],
    "model.nu": ["nan", "-1", ".nan"],
    "model.skr.gamma_fraction": ["0", "-1", ".inf"],
    "model.skr.jitter": ["-1", ".nan"],
    "model.skr.gamma_power": ["-0.1", "1.1", ".nan"],
    "model.bandwidth.start": ["0", "-1", ".inf"],
    "model.output_bandwidth.start": ["0", "-1", ".inf"],
    "lr_factors.mixing": ["-1", ".nan"],
    "lr_factors.gram": ["-1", ".inf"],
    "lr_factors.output": ["-1"],
    "lr_factors.inputs": ["-0.1"],
    "lr_factors.scales": ["-2"],
    "model.norm.momentum": ["0", "1.5", ".nan"],
    "model.num_samples": ["0", "-1"],
    "model.variance_check.threshold": [".nan", "-.inf"],
    "model.num_inducing": ["0"],
    "model.blocks_per_stage": ["-1"],
    "model.strides": ["[0,0]", "[-1,2,2]"],
    "model.stem_stride": ["0", "-1"],
    "model.residual_weights": ["[0,0]", "[-0.5,1.5]", "[.nan,1]", "[.inf,1]"],
    "model.num_layers": ["-1"],
    "model.noise_var": ["0", "-1", ".inf"],
    "model.widths": ["[0]", "[]"],
}


def numeric_options(parser: Parser) -> list[str]:
    hints = {action.dest: str(getattr(action, "_typehint", "")) for action in parser._actions}
    return [name for name, hint in hints.items() if "int" in hint or "float" in hint]


@pytest.mark.parametrize("kind", MODEL_CONFIGS)
def test_every_number_of_train_refuses_what_has_no_meaning(capsys, tmp_path, monkeypatch, kind):
    """The first value at the program's door, the others at that of the settings."""
    monkeypatch.chdir(tmp_path)
    names = set(numeric_options(train_parser(kind)))
    if kind != "conv":
        names -= set(numeric_options(train_parser("conv"))) - {"model.num_inducing"}
    assert names <= SENSELESS.keys()
    assert len(names) >= {"conv": 30, "dense": 2, "network": 1}[kind]
    optimiser: dict[str, Any] = {"kind": kind, "optimiser": "sgd", "validation_fraction": 0.1}
    for name in sorted(names):
        value, *others = SENSELESS[name]
        words = [f"--{key}={value}" for key, value in optimiser.items()]
        line = error_line(capsys, "train", *words, f"--{name}={value}")
        assert name.rpartition(".")[2] in line, line
        for value in others:
            with pytest.raises(ValueError, match="got"):
                changed(TrainConfig(**optimiser, model=MODEL_CONFIGS[kind]()), name, value)
    assert not list(tmp_path.iterdir())


def changed(settings: Any, name: str, text: str) -> Any:
    """Settings with another value, which may be deep inside."""
    first, _, rest = name.partition(".")
    if rest:
        return replace(settings, **{first: changed(getattr(settings, first), rest, text)})
    value, before = get_loader("yaml")(text), getattr(settings, first)
    if isinstance(before, tuple):
        value = tuple(type(before[0])(item) for item in value)
    return replace(settings, **{first: float(value) if isinstance(before, float) else value})


@pytest.mark.parametrize("command", ["evaluate", "predict"])
def test_every_number_of_other_commands_refuses_what_has_no_meaning(capsys, command):
    words = {"evaluate": ["x"], "predict": ["x", "y"]}[command]
    names = [
        action.dest
        for action in PARSERS[command]()._actions
        if "Int" in str(getattr(action, "_typehint", action.type))
    ]
    assert names
    for name in names:
        for value in ("-1", "x", "1.5") if name == "seed" else ("0", "-1", "x", "1.5"):
            line = error_line(capsys, command, *words, f"--{name}={value}")
            assert f"--{name}" in line


def test_numbers_of_other_commands_are_all_restricted():
    for make in PARSERS.values():
        for action in make()._actions:
            assert str(getattr(action, "_typehint", action.type)) not in ("<class 'int'>", "int")


def test_restricted_numbers_are_plain_integers():
    options = map_command.map_parser().parse_args(["x", "--points", "5", "--batch_size", "3"])
    assert {type(options[name]) for name in ("points", "batch_size")} == {int}


@pytest.mark.parametrize(
    ("command", "module"),
    [("reproduce", "paper"), ("report", "paper report"), ("bench", "benchmarks")],
)
def test_a_command_that_has_moved_says_where(capsys, command, module):
    line = error_line(capsys, command, "table3")
    assert f"{command} is python -m {module}, in a clone" in line


# ---- infinity ----


@pytest.mark.parametrize("value", ["inf", ".inf"])
def test_an_infinite_nu_is_the_nngp(value):
    off = ["--model.skr.gamma_fraction", "null", "--model.skr.jitter", "0"]
    for words in ["--model.nu", value], [f"--model.nu={value}"]:
        assert parse_train([*words, *off])[0].model.nu == float("inf")
    assert parse_train(["--name", "inf"])[1].name == "inf"


# ---- where options come from ----

LAYERS = ("default", "preset", "file", "environment", "command line")
PAIRS = [(low, high) for i, low in enumerate(LAYERS) for high in LAYERS[i + 1 :]]


@pytest.mark.parametrize("option", ["batch_size", "model.num_samples"])
@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_the_higher_source_wins(tmp_path, monkeypatch, option, low, high):
    values = {"default": TrainConfig().batch_size, "preset": 100, "file": 3}
    values |= {"environment": 4, "command line": 5}
    name = option.rpartition(".")[2]
    words = ["--preset", "digits" if "preset" in (low, high) else "none"]
    if "preset" in (low, high):
        values["preset"] = 64 if name == "batch_size" else 100
        monkeypatch.setattr(TrainConfig, "batch_size", 1)
    for source in (low, high):
        if source == "file":
            nested = f"model: {{{name}: 3}}" if "." in option else f"{name}: 3"
            (tmp_path / "own.yaml").write_text(nested)
            words += ["--config", str(tmp_path / "own.yaml")]
        if source == "environment":
            monkeypatch.setenv("GRAMIAN_TRAIN__" + option.upper().replace(".", "__"), "4")
        if source == "command line":
            words = [f"--{option}", "5", *words]  # before --config, which must not matter
    _, options, _ = parse_train(words)
    assert options[option] == values[high]


def test_files_and_their_place(tmp_path, monkeypatch):
    first, second = tmp_path / "a.yaml", tmp_path / "b.yaml"
    first.write_text("{seed: 1, batch_size: 2, model: {nu: 0.5, num_samples: 7}}")
    second.write_text("{seed: 3, model: {nu: .inf, image_shape: [1, 1, 1]}}")
    config, _, _ = parse_train(["--config", str(first), "--config", str(second), "--seed", "4"])
    assert (config.seed, config.batch_size, config.model.num_samples) == (4, 2, 7)
    assert config.model.nu == float("inf")
    assert config.model.image_shape == (3, 32, 32)  # the data decide, not the file
    monkeypatch.setenv("GRAMIAN_TRAIN__CONFIG", str(first))
    assert parse_train([])[0].seed == 1
    assert parse_train(["--config", str(second)])[0].seed == 3


def test_the_kind_of_model_comes_from_the_same_places(tmp_path, monkeypatch):
    path = tmp_path / "own.yaml"
    path.write_text("kind: dense")
    assert peek([]).kind == "conv"
    assert peek(["--preset", "sine"]).kind == "dense"
    assert peek(["--config", str(path)]).kind == "dense"
    monkeypatch.setenv("GRAMIAN_TRAIN__KIND", "network")
    assert peek(["--config", str(path)]).kind == "network"
    assert peek(["--config", str(path), "--kind", "conv"]).kind == "conv"


def test_a_file_with_some_options_leaves_the_rest_to_the_data(tmp_path):
    path, table = tmp_path / "own.yaml", tmp_path / "table.npz"
    x, y = np.random.default_rng(0).normal(size=(2, 40, 3))
    np.savez(table, x=x, y=y[:, 0])
    for text, words in [
        ("lr: 0.05", ["--lr", "0.05"]),
        ("{lr: 0.05, model: {nu: 3}}", ["--lr", "0.05", "--model.nu", "3"]),
    ]:
        path.write_text(text)
        for named in (["--data", str(table)], ["--data", "digits"], []):
            as_file = parse_train(["--config", str(path), *named])[0]
            assert as_file == parse_train([*words, *named])[0]
    assert parse_train(["--config", str(path), "--data", str(table)])[0].kind == "dense"
    path.write_text("{kind: conv, model: {nu: 3}}")  # of a model: taken as it is
    whole = parse_train(["--config", str(path)])[0]
    assert whole == TrainConfig(kind="conv", model=MODEL_CONFIGS["conv"](nu=3.0))


BOMB = "a: &a [1,1,1,1,1,1,1,1,1]\n" + "".join(
    f"{new}: &{new} [{','.join(['*' + old] * 9)}]\n"
    for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1, 2]", "is a list"),
        ("just words", "is a str"),
        ("a: [1", "cannot be read"),
        (b"\xff\xfe\x00", "cannot be read"),
        ("lr: fast", "--lr: expected float, got fast"),
        ("learning_rate: 1", "learning_rate"),
        ("model: {nuu: 1}", "nuu"),
        ("model: 3", "model"),
        ("kind: graph", "unknown kind 'graph'"),
        ("kind: [conv]", "kind"),
        ("data: 3", "data"),
        ("preset: [digits]", "preset"),
        ("lr: 0.1\nlr_factors:\n", "--lr_factors must hold settings by name, got None"),
        ("a: &a [x, *a]", "stands for 1e+18 values"),
        (BOMB, "stands for 4.9e+08 values"),
    ],
)
def test_a_file_that_holds_no_options(capsys, tmp_path, text, message):
    path = tmp_path / "own.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert message in error_line(capsys, "train", "--config", str(path))


def test_what_print_config_prints_is_a_config(capsys, tmp_path):
    words = ["train", "--quiet", "--model.nu", "inf", "--train_size", "50", "--data_dir", "x"]
    assert main([*words, "--print_config"]) == 0
    (tmp_path / "own.yaml").write_text(capsys.readouterr().out)
    again = parse_train(["--config", str(tmp_path / "own.yaml")])[0]
    assert again == parse_train(words[1:])[0]


# ---- custom modules ----


def test_named_modules_are_imported_and_others_are_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kernel = "from gramian import Kernel\nclass Own(Kernel):\n    def pairs(self, c, x, y):\n"
    for name in ("own_one", "own_two", "own_three"):
        (tmp_path / f"{name}.py").write_text(kernel + "        return c.square()\n")
    (tmp_path / "own.yaml").write_text("{model: {kernel: own_two.Own}}")
    assert parse_train(["--model.kernel", "own_one.Own"])[0].model.kernel == "own_one.Own"
    with pytest.raises(ConfigError, match=r"own_two, which is not imported: .* --import own_two"):
        parse_train(["--config", "own.yaml"])
    assert "own_two" not in sys.modules
    again = parse_train(["--config", "own.yaml", "--import", "own_two"])[0]
    assert again.model.kernel == "own_two.Own"
    (tmp_path / "own.yaml").write_text("import: [own_three]")
    with pytest.raises(UsageError, match=r"imports no modules, got \['own_three'\]"):
        parse_train(["--config", "own.yaml"])
    assert "own_three" not in sys.modules
    monkeypatch.setenv("GRAMIAN_TRAIN__MODEL__KERNEL", "own_one.Missing")
    with pytest.raises(ValueError, match=r"own_one\.Missing is no kernel"):
        parse_train([])
    (tmp_path / "own_four.py").write_text("1 / 0")
    with pytest.raises(UsageError, match=r"--import own_four: .*ZeroDivisionError"):
        parse_train(["--import", "own_one", "--import", "own_four"])


def test_another_kernel_does_not_take_the_bandwidths_of_the_preset():
    assert parse_train([])[0].model.bandwidth == Bandwidth(3.0, learned=True)
    other = parse_train(["--model.kernel", "arc_cosine"])[0].model
    assert (other.bandwidth, other.output_bandwidth) == (Bandwidth(), Bandwidth())
    matern = parse_train(["--model.kernel", "matern32"])[0].model
    assert matern.bandwidth == Bandwidth(3.0, learned=True)
    with pytest.raises(ConfigError, match="arc_cosine has no bandwidth"):
        parse_train(["--model.kernel", "arc_cosine", "--model.bandwidth.start", "2"])


def test_paths_of_data_are_no_modules(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plain = ["--preset", "none", "--data"]
    assert parse_train([*plain, "missing.npz"])[0].data == "missing.npz"
    os.mkdir("some.folder")
    assert parse_train([*plain, "some.folder"])[0].data == "some.folder"
    with pytest.raises(DataError, match=r"there is no file or folder missing\.npz"):
        parse_train(["--data", "missing.npz"])
    with pytest.raises(UsageError, match="--import missing"):
        parse_train(["--data", "missing.Data"])
