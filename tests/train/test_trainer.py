import json
import signal
from dataclasses import replace

import pytest
import torch

from gramian import SKR, DenseDKMConfig, NetworkConfig, NormChoice, NotPSDError, fit
from gramian.nn.layers import grams_of
from gramian.train.config import ConfigError, TrainConfig
from gramian.train.data import Augmentation, Dataset, RowScaler
from gramian.train.natural import NaturalTrainer
from gramian.train.predict.predictor import Predictor
from gramian.train.record.checkpoint import CheckpointError
from gramian.train.record.run_folder import RunFolder
from gramian.train.run import run_to_end
from gramian.train.runtime.engine import Engine
from gramian.train.runtime.signals import Stopped, StopSignals
from gramian.train.step import Place, batch_indices, check_finite, num_steps
from gramian.train.task import Task, untrained
from gramian.train.trainer import TrainingFailed
from tests.train.tiny import MODEL, assert_same_weights, config, trainer, weights


@pytest.fixture(scope="module")
def uninterrupted():
    run = trainer()
    run.fit()
    return run


def stop_after(run, steps: int) -> None:
    """Let training stop as by Ctrl-C once so many steps are done."""
    step = run.train_step

    def train_step():
        step()
        if run.step == steps:
            signal.raise_signal(signal.SIGINT)

    run.train_step = train_step


# ---- figures ----


def test_a_run_learns_and_reports(uninterrupted):
    rows = uninterrupted.rows
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert rows[-1]["objective"] > rows[0]["objective"]
    expected = {
        "objective",
        "expected_log_likelihood",
        "total_kl",
        "kl/stem.gram",
        "kl/output",
        "train_accuracy",
        "test_accuracy",
        "test_log_likelihood",
        "test_log_likelihood_clipped",
        "test_ece",
        "test_brier",
        "condition/stem.gram",
        "seconds",
        "memory_mb",
        "lr",
    }
    assert expected <= set(rows[0])
    terms = rows[0]["expected_log_likelihood"] - rows[0]["total_kl"] / 40
    assert rows[0]["objective"] == pytest.approx(terms, rel=1e-5)


def test_every_epoch_sees_every_point_once_in_an_order_of_its_own():
    orders = []
    for epoch in range(2):
        steps = range(3 * epoch, 3 * epoch + 3)
        order = torch.cat([batch_indices(40, 16, Place(0, step)) for step in steps])
        assert sorted(order.tolist()) == list(range(40))
        orders.append(order.tolist())
    assert orders[0] != orders[1]


@pytest.mark.parametrize(("num_data", "sizes"), [(33, [16, 17]), (34, [16, 16, 2]), (5, [5])])
def test_no_data_point_is_a_batch_of_its_own(num_data, sizes):
    batch = min(16, num_data)
    steps = range(num_steps(num_data, batch))
    found = [batch_indices(num_data, batch, Place(0, step)) for step in steps]
    assert [len(indices) for indices in found] == sizes
    assert sorted(torch.cat(found).tolist()) == list(range(num_data))
    assert num_steps(num_data, 1) == num_data


def test_a_network_whose_maps_are_one_pixel_trains_on_any_number_of_images():
    """Which has no variance in a batch of one: steps, their parts, and the final statistics."""
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (257, 1, 4, 4), generator=draw, dtype=torch.uint8)
    settings = NetworkConfig(widths=(4,), strides=(2,), stem_stride=2, blocks_per_stage=1)
    for parts in (1, 100):
        found = fit(settings, images, torch.arange(257) % 2, max_epochs=1, accumulate=parts)
        assert found.probabilities(images[:1]).isfinite().all()


@pytest.mark.parametrize("size", [(4, 4), (3, 4), (5, 4)])
def test_a_network_that_cannot_take_one_image_refuses_batches_of_one(size):
    draw = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (6, 1, *size), generator=draw, dtype=torch.uint8)
    settings = NetworkConfig(widths=(4,), strides=(2,), stem_stride=2, blocks_per_stage=1)
    if max(size) <= 4:
        with pytest.raises(ConfigError, match="batch_size must be 2 or more"):
            fit(settings, images, torch.arange(6) % 2, max_epochs=1, batch_size=1)
    else:
        fit(settings, images, torch.arange(6) % 2, max_epochs=1, batch_size=1)


@pytest.mark.parametrize("processes", [2, 3])
def test_no_process_has_a_share_of_one_data_point(processes):
    engine = Engine("cpu")
    engine.world_size = processes
    for num_places in range(2, 5 * processes):
        shares = []
        for engine.rank in range(processes):
            places, weight = engine.share(torch.arange(num_places))
            assert len(places) >= 2
            shares += [(place, weight / len(places) / processes) for place in places.tolist()]
        each = [sum(w for place, w in shares if place == n) for n in range(num_places)]
        assert each == pytest.approx([1 / num_places] * num_places)


def test_the_same_seed_gives_the_same_run_and_another_seed_another(uninterrupted):
    again, other = trainer(), trainer(config(seed=1))
    again.fit()
    other.fit()
    assert_same_weights(weights(again), weights(uninterrupted))
    with pytest.raises(AssertionError, match="weights differ"):
        assert_same_weights(weights(other), weights(uninterrupted))


def test_recomputing_activations_changes_nothing(uninterrupted):
    run = trainer(config(recompute_activations=True))
    run.fit()
    assert_same_weights(weights(run), weights(uninterrupted))


def test_float64(uninterrupted):
    run = trainer(config(precision="64-true", max_epochs=1))
    rows = run.fit()
    assert run.model.dtype == torch.float64
    assert rows[0]["objective"] == pytest.approx(uninterrupted.rows[0]["objective"], abs=0.3)


# ---- stop and resume ----


@pytest.mark.parametrize("steps", [1, 3, 4, 8])
def test_a_stopped_run_resumes_bit_exactly_also_in_the_middle_of_an_epoch(
    tmp_path, steps, uninterrupted
):
    first = trainer(folder=RunFolder(tmp_path))
    stop_after(first, steps)
    with pytest.raises(Stopped) as stopped:
        first.fit()
    assert stopped.value.exit_code == 130
    second = trainer(folder=RunFolder(tmp_path))
    second.fit()
    assert second.resumed
    assert_same_weights(weights(second), weights(uninterrupted))
    figures = [
        [{k: v for k, v in row.items() if k not in ("seconds", "memory_mb")} for row in run.rows]
        for run in (second, uninterrupted)
    ]
    assert figures[0] == figures[1]


def table_trainer(folder=None, predictor=None, **changes):
    """With natural gradients, which step q(f_i) beside the optimiser."""
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(24, 2, generator=draw, dtype=torch.float64)
    data = Dataset(x, x[:, :1].sin())
    model = DenseDKMConfig(num_inducing=6, divergence="exact", likelihood="gaussian", **changes)
    settings = config(
        kind="dense", natural=True, max_epochs=2, batch_size=8, precision="64-true",
        crop_padding=0, model=model,
    )  # fmt: skip
    predictor = predictor or untrained(model, data, RowScaler.fit(x), 0)
    task = Task(data, None, None, predictor.scaler, Augmentation(0, False))
    engine = Engine("cpu", precision="64-true")
    return NaturalTrainer(predictor, task, settings, engine, folder, quiet=True)


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_a_stopped_table_resumes_bit_exactly(tmp_path, steps):
    whole = table_trainer()
    whole.fit()
    first = table_trainer(RunFolder(tmp_path))
    stop_after(first, steps)
    with pytest.raises(Stopped):
        first.fit()
    second = table_trainer(RunFolder(tmp_path))
    second.fit()
    assert second.resumed
    assert_same_weights(weights(second), weights(whole))


def settings_of(model) -> list:
    """All that a module is, but for its numbers."""
    modules = [
        {name: value for name, value in vars(module).items() if not name.startswith("_")}
        for module in model.modules()
    ]
    return [modules, [(p.requires_grad, p.grad) for p in model.parameters()]]


def interrupt(run, step: int) -> None:
    """Let Ctrl-C come in the middle of a step, at once."""
    gradients = run.gradients

    def interrupted():
        if run.step == step:
            raise KeyboardInterrupt
        return gradients()

    run.gradients = interrupted
    with pytest.raises(KeyboardInterrupt):
        run.fit()


def test_an_interrupted_table_trains_as_if_nothing_had_been():
    first = table_trainer()
    first.model.inputs.requires_grad_(False)  # by the user
    before, start = settings_of(first.model.eval()), weights(first)
    interrupt(first, 2)
    assert settings_of(first.model) == before
    first.model.load_state_dict(start)
    again, fresh = table_trainer(predictor=first.predictor), table_trainer()
    fresh.model.inputs.requires_grad_(False)
    for run in (again, fresh):
        run.fit()
    assert_same_weights(weights(again), weights(fresh))
    assert settings_of(fresh.model) == before


def test_q_is_at_its_optimum_for_the_final_statistics():
    """Another step of natural gradients, which is exact here, moves nothing."""
    run = table_trainer(norm=NormChoice(), kernel="normalized_gaussian")
    run.fit()
    q_mean = run.model.output.q_mean.detach().clone()
    run.complete()
    torch.testing.assert_close(run.model.output.q_mean.detach(), q_mean, rtol=1e-8, atol=1e-10)


class Sharing(Engine):
    """An engine that compiles the model, and prepares it for two processes."""

    def set_up(self, model, optimiser, batch):
        self.world_size, self.splits_chain, self.compile = 2, True, True
        forward = super().set_up(model, optimiser, batch)
        self.world_size, self.compile = 1, False
        return forward


def test_an_interrupted_model_is_neither_compiled_nor_shared(monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    run = trainer(engine=Sharing("cpu"))
    before = settings_of(run.model.eval())
    interrupt(run, 0)
    assert settings_of(run.model) == before
    assert run.predictor.probabilities(run.task.test.x).isfinite().all()


def test_a_terminal_shows_a_bar(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    run = trainer(config(max_epochs=2))
    run.view.quiet = False
    run.fit()
    shown = capsys.readouterr().err
    assert "step 6/6" in shown
    assert "epoch 2/2" in shown
    assert "lr " in shown


def test_an_engine_has_the_settings_of_its_run():
    for compiled, split in ((True, False), (False, True)):
        engine = Engine.from_config(config(compile=compiled, split_chain=split, device="cpu"))
        assert (engine.compile, engine.splits_chain) == (compiled, split)


def test_resuming_a_finished_run_trains_no_step(tmp_path, uninterrupted):
    trainer(folder=RunFolder(tmp_path)).fit()
    again = trainer(folder=RunFolder(tmp_path))
    again.train_step = lambda: pytest.fail("a step was trained")
    again.fit()
    assert_same_weights(weights(again), weights(uninterrupted))


def test_checkpoints_are_written_by_the_clock_too(tmp_path):
    run = trainer(config(checkpoint_minutes=0.0), RunFolder(tmp_path))
    stop_after(run, 2)
    with pytest.raises(Stopped):
        run.fit()
    assert [path.name for path in run.folder.checkpoints.paths()] == [
        "step=00000002.ckpt",
        "step=00000001.ckpt",
    ]


def test_a_damaged_checkpoint_costs_only_the_way_from_the_one_before(
    tmp_path, uninterrupted, caplog
):
    first = trainer(folder=RunFolder(tmp_path))
    stop_after(first, 7)
    with pytest.raises(Stopped):
        first.fit()
    newest = first.folder.checkpoints.paths()[0]
    newest.write_bytes(newest.read_bytes()[:1000])
    second = trainer(folder=RunFolder(tmp_path))
    second.fit()
    assert "using the one before" in caplog.text
    assert_same_weights(weights(second), weights(uninterrupted))


def test_a_checkpoint_of_other_settings_or_another_model_is_refused(tmp_path):
    trainer(config(max_epochs=1), RunFolder(tmp_path)).fit()
    with pytest.raises(CheckpointError, match=r"other settings \(lr: 0\.01 → 0\.02\)"):
        trainer(config(max_epochs=1, lr=0.02), RunFolder(tmp_path)).fit()
    run = trainer(config(max_epochs=1))
    run.start(resume=False)
    wider = trainer(config(model=replace(MODEL, num_inducing=(9, 9))))
    wider.start(resume=False)
    with pytest.raises(CheckpointError, match="of another model"):
        wider.load_state(run.state())


def test_a_checkpoint_that_lacks_something_is_refused_by_name(tmp_path):
    run = trainer(config(max_epochs=1), RunFolder(tmp_path))
    run.fit()
    state = run.folder.checkpoints.newest()
    del state["sums"], state["step"]
    run.folder.checkpoints.save(9, state)
    with pytest.raises(CheckpointError, match="the newest checkpoint lacks step, sums"):
        trainer(config(max_epochs=1), RunFolder(tmp_path)).fit()


def test_an_error_of_another_model_is_told_to_the_end(tmp_path):
    run, wider = trainer(), trainer(config(model=replace(MODEL, num_inducing=(9, 9))))
    run.start(resume=False)
    wider.start(resume=False)
    with pytest.raises(CheckpointError) as caught:
        wider.load_state(run.state())
    assert "size mismatch for output.q_mean" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_seconds_are_those_of_all_stretches(tmp_path):
    first = trainer(folder=RunFolder(tmp_path))
    stop_after(first, 4)
    with pytest.raises(Stopped):
        first.fit()
    state = first.folder.checkpoints.newest()
    assert 0 < state["seconds"] <= first.seconds()
    first.folder.checkpoints.save(5, state | {"seconds": 1000.0})
    second = trainer(folder=RunFolder(tmp_path))
    assert run_to_end(second, second.folder)["seconds"] > 1000


def test_a_run_that_failed_goes_on_with_another_policy(tmp_path):
    first = trainer(folder=RunFolder(tmp_path))
    fail_at(first, {4})
    with pytest.raises(TrainingFailed):
        first.fit()
    second = trainer(config(on_numerical_error="skip", max_numerical_errors=1), RunFolder(tmp_path))
    fail_at(second, {4})
    assert second.fit()[-1]["numerical_errors"] == 1


def test_more_epochs_follow_the_new_schedule_and_say_so(tmp_path, caplog):
    trainer(config(max_epochs=2), RunFolder(tmp_path)).fit()
    with caplog.at_level("INFO", "gramian"):
        rows = trainer(config(max_epochs=4), RunFolder(tmp_path)).fit()
    assert "the learning rate follows the schedule steps over 4 epochs from here on" in caplog.text
    assert [row["lr"] for row in rows] == pytest.approx([0.01, 0.0001, 0.001, 0.0001])


def test_a_copy_of_the_state_is_kept_for_rollback_only():
    for policy in ("raise", "skip", "rollback"):
        run = trainer(config(max_epochs=1, on_numerical_error=policy))
        run.fit()
        assert (run.last_saved is None) == (policy != "rollback")


def test_a_second_signal_interrupts_at_once():
    with StopSignals() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.received == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert Stopped(signal.SIGTERM).exit_code == 143
    assert str(Stopped(signal.SIGTERM)) == "stopped by SIGTERM"


# ---- numerical trouble ----


def fail_at(run, steps: set[int]) -> None:
    """Let the objective fail at these steps, the first time they are met."""
    gradients, left = run.gradients, set(steps)

    def failing(*names):
        if run.step in left:
            left.discard(run.step)
            error = NotPSDError("K_ii", "float32", 8, 3, -1e-5)
            error.layer = "stem"
            raise error
        return gradients()

    run.gradients = failing


def test_raise_says_epoch_layer_and_remedy():
    run = trainer()
    run.start(resume=False)
    fail_at(run, {4})
    run.start = lambda resume: None
    with pytest.raises(TrainingFailed, match=r"epoch 2, step 5: stem: K_ii .* Raise .* jitter"):
        run.fit()
    assert TrainingFailed.exit_code == 3


def test_with_deferred_checks_steps_are_the_same_and_errors_say_the_same(uninterrupted):
    """As on a GPU: nothing is asked before the end of a step, and then all that there is to say."""

    def broken(defers):
        run = trainer()
        run.engine.defers_checks = defers
        run.start(resume=False)
        run.start = lambda resume: None
        with torch.no_grad():  # no Gram matrix has such a factor
            run.model.layers["stem"].gram.inducing_gram.raw_factor.fill_(torch.nan)
        with pytest.raises(TrainingFailed) as failed:
            run.fit()
        return str(failed.value)

    run = trainer()
    run.engine.defers_checks = True
    run.fit()  # gradients are added in another order
    for name, value in weights(uninterrupted).items():
        torch.testing.assert_close(run.model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    assert broken(defers=True) == broken(defers=False)
    assert "stage1_block1.layer1: K_ii (8×8, float32) contains NaN" in broken(defers=True)


def test_skip_leaves_out_the_batch_and_counts(uninterrupted):
    run = trainer(config(on_numerical_error="skip"))
    run.start(resume=False)
    run.start = lambda resume: None
    fail_at(run, {1, 5})
    rows = run.fit()
    assert run.step == uninterrupted.step
    assert [row["numerical_errors"] for row in rows] == [1, 2, 2]


def test_rollback_goes_back_to_the_checkpoint_and_on_with_other_noise(uninterrupted):
    run = trainer(config(on_numerical_error="rollback"))
    run.start(resume=False)
    run.start = lambda resume: None
    fail_at(run, {5})
    steps = []
    step = run.train_step
    run.train_step = lambda: (steps.append(run.step), step())
    run.fit()
    assert steps == [0, 1, 2, 3, 4, 5, 3, 4, 5, 6, 7, 8]
    assert run.attempt == run.num_errors == 1
    with pytest.raises(AssertionError, match="weights differ"):
        assert_same_weights(weights(run), weights(uninterrupted))


def test_a_rollback_is_not_repeated_in_vain(monkeypatch):
    """A batch of NaN fails whatever the noise; an error of other numbers each time may not."""
    run = trainer(config(on_numerical_error="rollback"))
    inputs = type(run.task).inputs
    monkeypatch.setattr(
        type(run.task),
        "inputs",
        lambda *args: inputs(*args) * (torch.nan if run.step == 4 else 1),
    )
    with pytest.raises(TrainingFailed, match=r"step 5: .*came 5 times.*skip") as caught:
        run.fit()
    assert run.num_errors == 5
    assert "\n" not in str(caught.value)


def test_rollbacks_of_different_errors_are_all_tried():
    run = trainer(config(on_numerical_error="rollback"))
    run.start(resume=False)
    run.start = lambda resume: None
    gradients, left = run.gradients, list(range(9))

    def failing():
        if run.step == 4 and left:
            raise NotPSDError("K_ii", "float32", 8, 3, -1e-5 * left.pop())
        return gradients()

    run.gradients = failing
    run.fit()
    assert run.num_errors == 9


def fail_to_evaluate(run, epochs: set[int]) -> None:
    """Let the evaluation after these epochs fail, the first time."""
    measure, left = run.measure, set(epochs)

    def failing(*names):
        epoch = run.step // run.steps_per_epoch
        if epoch in left:
            left.discard(epoch)
            raise NotPSDError("K_ii", "float32", 8, 3, -1e-5)
        return measure(*names)

    run.measure = failing


def test_skip_goes_on_after_an_evaluation_that_fails(uninterrupted):
    run = trainer(config(on_numerical_error="skip"))
    fail_to_evaluate(run, {1})
    rows = run.fit()
    assert ["test_accuracy" in row for row in rows] == [False, True, True]
    assert [row["numerical_errors"] for row in rows] == [1, 1, 1]
    assert_same_weights(weights(run), weights(uninterrupted))


def test_weights_that_are_not_finite_are_a_numerical_error_of_an_evaluation():
    run = trainer(config(max_epochs=1))
    evaluate = run.evaluate

    def spoilt():
        run.measure = lambda *names: {}
        next(iter(grams_of(run.model.layers).values())).inducing_gram.raw_factor.data.fill_(
            torch.nan
        )
        return evaluate()

    run.evaluate = spoilt
    with pytest.raises(TrainingFailed, match=r"stem\.gram: the Gram matrix is not finite"):
        run.fit()


def test_rollback_after_an_evaluation_that_fails_repeats_the_epoch_with_other_noise():
    run = trainer(config(on_numerical_error="rollback"))
    fail_to_evaluate(run, {2})
    rows = run.fit()
    assert [row["epoch"] for row in rows] == [1, 2, 3]
    assert all("test_accuracy" in row for row in rows)
    assert run.attempt == run.num_errors == 1


@pytest.mark.parametrize("epoch", [1, 3])
def test_an_evaluation_that_fails_costs_no_step_of_its_epoch(tmp_path, uninterrupted, epoch):
    first = trainer(folder=RunFolder(tmp_path))
    fail_to_evaluate(first, {epoch})
    with pytest.raises(TrainingFailed, match=f"epoch {epoch}, step {3 * epoch}:"):
        first.fit()
    assert first.folder.checkpoints.newest()["step"] == 3 * epoch
    second = trainer(folder=RunFolder(tmp_path))
    rows = second.fit()  # the evaluation is not left out
    assert [row["test_accuracy"] for row in rows] == [
        row["test_accuracy"] for row in uninterrupted.rows
    ]
    assert_same_weights(weights(second), weights(uninterrupted))


def test_too_many_errors_are_too_many():
    run = trainer(config(on_numerical_error="skip", max_numerical_errors=2))
    run.start(resume=False)
    run.start = lambda resume: None
    fail_at(run, {1, 2, 3})
    with pytest.raises(TrainingFailed, match="step 4"):
        run.fit()


def test_an_objective_or_gradient_that_is_not_finite_is_a_numerical_error():
    run = trainer(config(on_numerical_error="skip", max_epochs=1))
    run.start(resume=False)
    before = weights(run)
    with torch.no_grad():
        run.model.output.q_mean[0, 0] = torch.inf
        before["output.q_mean"][0, 0] = torch.inf
    run.train_step()
    assert run.num_errors == 1
    assert_same_weights(weights(run), before)


# ---- validation and the end ----


def test_patience_stops_and_keeps_the_best():
    run = trainer(
        config(
            max_epochs=8, lr=0.3, patience=1, validation_fraction=0.5, estimate_statistics=False
        ),
        validation=True,
    )
    rows = run.fit()
    likelihoods = [row["validation_log_likelihood"] for row in rows]
    assert len(rows) < 8
    assert run.best["epoch"] == 1 + likelihoods.index(max(likelihoods))
    assert likelihoods[-1] < max(likelihoods)
    found = run.measure()["validation"].compute()["log_likelihood"]
    assert float(found) == pytest.approx(max(likelihoods), rel=1e-6)


def test_the_test_set_waits_for_the_end_if_there_is_a_validation_set():
    rows = trainer(config(validation_fraction=0.5), validation=True).fit()
    assert all("validation_accuracy" in row for row in rows)
    assert ["test_accuracy" in row for row in rows] == [False, False, True]


def test_the_folder_of_a_run(tmp_path, uninterrupted):
    folder = RunFolder(tmp_path / "run")
    run = trainer(folder=folder)
    run.fit()
    assert {path.name for path in folder.path.iterdir()} == {
        ".gramian-lock",
        "config.yaml",
        "env.json",
        "metrics.jsonl",
        "metrics.csv",
        "checkpoints",
        "model",
    }
    assert folder.read_metrics() == run.rows
    header, *lines = (folder.path / "metrics.csv").read_text().splitlines()
    assert header.split(",")[:2] == ["epoch", "step"]
    assert len(lines) == 3
    loaded = Predictor.from_pretrained(folder.model)
    x = run.task.test.x
    assert torch.equal(loaded.probabilities(x), run.predictor.probabilities(x))
    assert json.loads((folder.model / "config.json").read_text())["class_names"][3] == "3"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_epochs": 0}, "max_epochs must be positive, got 0"),
        ({"lr": 0.0}, "lr must be positive"),
        ({"validation_fraction": 1.0}, r"validation_fraction must be in \[0, 1\)"),
        ({"patience": 3}, "patience needs a validation set"),
        ({"kind": "dense"}, "kind dense needs a DenseDKMConfig"),
    ],
)
def test_settings_without_a_meaning(changes, message):
    with pytest.raises(ConfigError, match=message):
        config(**changes)


def test_sampling_can_be_turned_off():
    run = trainer(config(max_epochs=1, model=replace(MODEL, skr=SKR.off())))
    assert run.fit()[0]["objective"] < 0
    assert isinstance(run.config, TrainConfig)


def test_predictions_follow_every_step():
    """Adam in one kernel changes parameters without a trace in PyTorch's version counters."""
    model = replace(MODEL, norm=NormChoice(data="local"))  # no running mean that a step moves
    run = trainer(config(model=model))
    run.start(resume=False)
    x = run.task.train.x[:4]
    before = run.predictor.latent(x).mean
    run.train_step()
    assert not torch.equal(run.predictor.latent(x).mean, before)


def test_a_step_looks_at_the_device_twice(monkeypatch):
    """Once whether all is finite and once at what is logged, however many layers there are."""
    run = trainer()
    run.start(resume=False)
    result = run.gradients()
    looks = []
    for name in ("tolist", "item", "__bool__", "__int__", "__float__"):
        real = getattr(torch.Tensor, name)
        monkeypatch.setattr(
            torch.Tensor, name, lambda self, real=real: (looks.append(1), real(self))[1]
        )
    check_finite(run.model, result.terms)
    numbers = result.numbers()
    assert len(looks) == 2
    assert numbers["count"] == 16
    assert set(numbers) > {"objective", "kl/stem.gram", "kl/output", "clamped"}


# ---- a batch in parts ----

NO_MEANS = NormChoice("none", "none")


@pytest.mark.parametrize(
    ("norm", "same"), [(NO_MEANS, True), (NormChoice(), False)], ids=["no means", "means of a part"]
)
def test_parts_of_a_batch_add_up_to_its_step(norm, same):
    """Exactly, unless a normalisation takes the means of a part instead of those of the batch."""
    settings = {
        "model": replace(MODEL, norm=norm),
        "precision": "64-true",
        "estimate_statistics": False,
    }
    whole, parts = trainer(config(**settings)), trainer(config(**settings, accumulate=3))
    rows = whole.fit()
    for row, expected in zip(parts.fit(), rows, strict=True):
        assert row["objective"] == pytest.approx(expected["objective"], rel=1e-10 if same else 0.5)
        assert row["train_accuracy"] == expected["train_accuracy"] or not same
    close = [
        torch.allclose(value, weights(parts)[name], rtol=1e-9, atol=1e-10)
        for name, value in weights(whole).items()
    ]
    assert all(close) == same


def test_parts_need_less_memory(monkeypatch):
    monkeypatch.setattr("gramian.train.cost.step_memory.resident_bytes", lambda device: 0)
    assert trainer(config(memory="9.05MB", batch_size=40)).model.recomputed
    assert not trainer(config(memory="9.05MB", batch_size=40, accumulate=2)).model.recomputed


def test_a_rollback_needs_the_whole_optimiser():
    with pytest.raises(ConfigError, match="shard_optimiser false, or skip"):
        config(shard_optimiser=True, on_numerical_error="rollback")
