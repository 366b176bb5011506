"""The paper's tables as data: what each row changes, and that the settings are the published."""

import subprocess
import sys
from dataclasses import replace

import pytest

from gramian import SKR
from gramian.train.config import ConfigError
from gramian.train.optimise import lr_factor
from gramian.train.run_settings import changed
from paper.plan import Changes
from paper.published import experiments
from paper.registry import TABLES

FEW_SIZES = (1000, 500, 2000, 5000)


def configs(name, scale):
    headline = TABLES[name].headline(scale)
    return {row.key: row.config(headline) for row in TABLES[name].rows}


def test_what_a_user_changes_is_in_the_settings_and_in_the_name_of_the_folder():
    headline = TABLES["table3"].headline("small")
    changes = Changes(epochs=3, train_size=60, precision="tf32-emulated", batch_size=16)
    changed = changes.apply(headline)
    expected = {"max_epochs": 3, "train_size": 60, "precision": "tf32-emulated", "batch_size": 16}
    assert changed == replace(headline, **expected)
    assert changes.suffix() == "-60points-3epochs-batch16-tf32-emulated"


def test_the_registries_are_read_without_torch():
    """``python -m paper list`` must answer at once."""
    code = """
import sys
from paper.conditions.sweep import FIGURES
from paper.registry import TABLES
assert TABLES and FIGURES
assert not {"torch", "numpy", "scipy", "yaml"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_published_runs_that_are_named_exist_and_keys_are_folder_names(table):
    assert table.rows[0].key == "headline"
    assert not table.rows[0].changes
    for row in table.rows:
        assert row.published is None or row.published in experiments()
        assert row.key.isidentifier()


def test_labels_have_the_numbers_of_their_settings():
    found = {row.key: row for row in TABLES["table3"].rows}
    headline = TABLES["table3"].headline("paper")
    assert found["short"].title(headline) == "200 epochs"
    assert found["short"].title(replace(headline, max_epochs=6)) == "1 epoch"
    assert found["keep_jitter"].title(headline) == "no SKR, but λ = 0.1"
    assert found["gamma_twice"].title(headline) == "twice γ"


def test_a_setting_that_does_not_exist_is_refused():
    with pytest.raises(TypeError, match="nonsense"):
        changed(TABLES["table3"].headline("small"), {"model.nonsense": 1})


def test_ablations_differ_from_the_headline_only_in_what_they_say():
    found = configs("table3", "paper")
    headline = found["headline"]
    assert (headline.model.skr, headline.model.nu) == (SKR(0.25, 0.1), 0.001)
    assert headline.model.divergence == "taylor"
    changed = {
        "no_taylor": {"divergence": "exact"},
        "no_skr": {"skr": SKR.off()},
        "neither": {"divergence": "exact", "skr": SKR.off()},
        "keep_jitter": {"skr": SKR(None, 0.1)},
        "zero_nu": {"nu": 0.0},
        "gamma_twice": {"skr": SKR(0.5, 0.1)},
    }
    for key, change in changed.items():
        assert found[key] == replace(headline, model=replace(headline.model, **change))
    assert replace(found["short"], max_epochs=1200, milestones=(2 / 3, 11 / 12)) == headline
    assert set(found) == {"headline", "short", *changed}


@pytest.mark.parametrize(
    ("key", "epochs", "drops"), [("headline", 1200, (800, 1100)), ("short", 200, (160, 180))]
)
def test_published_schedules(key, epochs, drops):
    config = configs("table3", "paper")[key]
    assert config.max_epochs == epochs
    factors = [
        lr_factor(config.schedule, epoch, 1, epochs, config.milestones) for epoch in range(epochs)
    ]
    changes = tuple(e for e in range(1, epochs) if factors[e] != factors[e - 1])
    assert changes == drops
    assert factors[-1] == pytest.approx(0.01)


def test_networks_are_those_of_the_paper():
    table1, table2 = configs("table1", "paper"), configs("table2", "paper")
    adam, sgd = table1["network_adam"], table1["network_sgd"]
    assert (adam.optimiser, adam.lr, adam.betas, adam.schedule) == (
        "adam",
        1e-3,
        (0.9, 0.999),
        "steps",
    )
    assert (sgd.optimiser, sgd.lr, sgd.momentum, sgd.weight_decay) == ("sgd", 0.01, 0.9, 5e-4)
    assert sgd.schedule == "cosine"
    assert table1["network_sgd_text"] == replace(sgd, lr=0.1)
    adamw = table2["network_adamw"]
    assert (adamw.optimiser, adamw.lr, adamw.weight_decay, adamw.schedule) == (
        "adamw",
        1e-3,
        0.1,
        "cosine",
    )
    for row in (adam, sgd, adamw):
        assert row.model.widths == (512, 1024, 2048)
        assert row.batch_size == 128
        assert row.max_epochs == 1200
    assert table1["previous"].precision == "64-true"
    assert all(row.data == "cifar100" for row in table2.values())


def test_stability_has_the_rows_of_table_3_and_the_method_as_published():
    table = TABLES["stability"]
    assert table.rows == TABLES["table3"].rows
    headline, published = table.headline("small"), TABLES["table3"].headline("paper")
    for name in ("skr", "nu", "divergence", "kernel", "kernel_jitter", "variance_check"):
        assert getattr(headline.model, name) == getattr(published.model, name)
    assert (headline.on_numerical_error, headline.conditions) == ("raise", True)
    images = 1347  # of digits
    assert headline.max_epochs * -(-images // headline.batch_size) >= 10_000
    with pytest.raises(ConfigError, match="stability is small only"):
        table.headline("paper")


def test_networks_beside_the_recipe_differ_only_in_the_model_and_its_optimiser():
    """The same images, augmentation, epochs and batches, and widths, blocks and strides."""
    for name in ("widths", "few"):
        found = configs(name, "small")
        groups = {}
        for key, row in found.items():
            size = row.model.widths if row.kind == "network" else row.model.num_inducing
            shape = (row.model.blocks_per_stage, row.model.strides, row.model.stem_stride)
            seen = (row.data, row.crop_padding, row.flip, row.batch_size, row.schedule)
            groups.setdefault((size, shape, row.train_size, row.max_epochs, seen), []).append(key)
        assert len(groups) == 4, groups
        assert all(len(keys) == (3 if name == "widths" else 6) for keys in groups.values())
        for key, row in found.items():
            if "sgd" in key:
                assert (row.optimiser, row.momentum, row.weight_decay) == ("sgd", 0.9, 5e-4)
            else:
                assert (row.optimiser, row.momentum, row.weight_decay) == ("muon", 0.95, 0.0)
            assert (row.patience is not None) == ("stop" in key)
    skr = {key: row.model.skr for key, row in configs("few", "small").items() if row.kind == "conv"}
    assert [key for key in skr if not skr[key].samples] == [f"plain_{n}" for n in FEW_SIZES]


def test_all_rows_of_a_small_table_share_data_epochs_and_augmentation():
    for name in ("table1", "table3"):
        found = configs(name, "small")
        shared = {
            (c.data, c.train_size, c.split_seed, c.crop_padding, c.flip) for c in found.values()
        }
        assert len(shared) == 1
        epochs = {config.max_epochs for key, config in found.items() if key != "short"}
        assert epochs == {found["headline"].max_epochs}
