import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.font_manager import fontManager

from gramian.experiments.plots import style
from gramian.experiments.plots import training_plots as plots
from gramian.nn.likelihoods.metric_sums import ClassificationMetrics

LAYERS = [f"layers.{k}.gram" for k in range(20)]
RNG = np.random.default_rng(0)


def epoch(n):
    row = {"epoch": n, "objective": -0.3 - 1e5 * math.exp(-3.0 * n), "lr": 0.01, "note": "fine"}
    row["expected_log_likelihood"] = row["objective"] + 0.1
    for split in ("train", "validation", "test"):
        row |= {f"{split}_accuracy": 1 - 0.6 / (n + 1), f"{split}_log_likelihood": -1 / (n + 1)}
    for depth, layer in enumerate(LAYERS):
        row |= {f"condition/{layer}": 10.0 ** (depth / 2), f"kl/{layer}": (depth + 1.0) * n}
    return row


ROWS = [epoch(n) for n in range(30)]


def drawn(figure):
    """Draw it, as only then matplotlib lays out and complains; its axes."""
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()  # canvas.draw() does nothing without a backend
    return figure.axes


def lines(axes):
    return {line.get_label().split(" (")[0]: line for line in axes.get_lines()}


def texts(figure):
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_learning_curves_have_three_panels_and_bend_an_enormous_axis():
    objective, accuracy, likelihood = drawn(plots.learning_curves(ROWS))
    assert [a.get_title() for a in (objective, accuracy, likelihood)] == [
        "Objective",
        "Accuracy",
        "Log-likelihood",
    ]
    assert objective.get_yscale() == "symlog"
    assert "log below" in objective.get_ylabel()
    assert accuracy.get_yscale() == likelihood.get_yscale() == "linear"
    assert set(lines(accuracy)) == {"train", "validation", "test"}
    assert lines(accuracy)["test"].get_ydata()[-1] == pytest.approx(98)
    labels = [label.get_text() for label in objective.get_yticklabels()]
    assert "$−10^{4}$" in labels


def test_regressions_have_a_panel_of_errors():
    rows = [{"epoch": n, "objective": -1.0, "test_rmse": 1.0 / n} for n in (1, 2)]
    _, error = drawn(plots.learning_curves(rows))
    assert error.get_title() == "Root mean squared error"
    assert list(lines(error)["test"].get_ydata()) == [1.0, 0.5]


def test_an_enormous_end_bends_the_axis_upwards():
    rows = [{"epoch": n, "objective": 1.0 if n < 9 else 1e4} for n in range(10)]
    (axes,) = drawn(plots.learning_curves(rows))
    assert "log above" in axes.get_ylabel()


def test_learning_curves_leave_out_what_is_missing_and_break_at_nan():
    rows = [
        {"epoch": 1, "objective": math.nan, "test_accuracy": None},
        {"epoch": 2, "objective": -2.0, "expected_log_likelihood": math.nan},
        {"epoch": 3},
        {"epoch": 4, "objective": -math.inf, "expected_log_likelihood": math.nan},
        {"epoch": 5, "objective": -1.0},
        {"epoch": 2, "objective": -3.0},
    ]
    (axes,) = drawn(plots.learning_curves(rows))
    assert list(lines(axes)) == ["objective"]
    curve = lines(axes)["objective"]
    assert list(curve.get_xdata()) == [1, 2, 4, 5]
    np.testing.assert_array_equal(curve.get_ydata(), [math.nan, -3, math.nan, -1])
    assert curve.get_marker() == "o"  # or a point between two gaps would not be seen


@pytest.mark.parametrize("draw", [plots.learning_curves, plots.condition_numbers, plots.kl_terms])
def test_curves_of_one_epoch_and_of_none(draw):
    assert drawn(draw(ROWS[1:2]))[0].get_lines()
    for rows in ([], [{"epoch": 1}], [{"objective": math.nan, "kl/a": 0.0, "condition/a": None}]):
        (axes,) = drawn(draw(rows))
        assert not axes.get_lines()
        assert "recorded" in axes.texts[0].get_text()


@pytest.mark.parametrize(
    ("draw", "layers"),
    [(plots.condition_numbers, LAYERS), (plots.kl_terms, LAYERS), (plots.kl_terms, LAYERS[:1])],
)
def test_layers_have_a_line_and_a_colour_each(draw, layers):
    keep = {"epoch", *(f"{prefix}/{layer}" for prefix in ("kl", "condition") for layer in layers)}
    figure = draw([{k: v for k, v in row.items() if k in keep} for row in ROWS])
    (axes,) = drawn(figure)
    assert axes.get_yscale() == "log"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == layers
    found = [line.get_color() for line in axes.get_lines() if line.get_label() in layers]
    assert len(set(found)) == len(layers)
    window, legend = figure.bbox, figure.legends[0].get_window_extent()
    assert window.y0 <= legend.y0
    assert legend.x1 <= window.x1


def test_the_limit_of_float32_is_shown_when_near():
    assert texts(plots.condition_numbers(ROWS)) == ["1/ε of float32"]
    assert not texts(plots.condition_numbers([{"epoch": 1, "condition/a": 10.0}]))


def test_the_reliability_diagram_takes_what_the_metrics_give():
    p = torch.rand(300, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
    metrics = ClassificationMetrics(3)
    metrics.update(p, torch.arange(300) % 3, p[:, 0].log(), p[:, 0].log())
    top, bottom = drawn(plots.reliability_diagram(*metrics.reliability()))
    assert f"error {100 * metrics.compute()['ece']:.2f} %" in top.get_title()
    assert sum(bar.get_height() for bar in bottom.patches) == 300


@pytest.mark.parametrize(
    "bins",
    [
        ([0.5], [0.7], [10]),
        ([math.nan, 0.9], [math.nan, 0.8], [0, 4]),
        ([math.nan] * 3, [math.nan] * 3, [0, 0, 0]),
    ],
)
def test_reliability_survives_few_and_empty_bins(bins):
    assert len(drawn(plots.reliability_diagram(*bins))) == 2


@pytest.mark.parametrize("num_classes", [2, 10, 20, 21, 100, 300])
def test_confusion_has_numbers_for_few_classes(num_classes):
    counts = np.eye(num_classes, dtype=int) * 9
    counts[0] = 0  # a class without examples
    names = [f"class ${k}" for k in range(num_classes)]
    figure = plots.confusion_matrix(torch.tensor(counts), names)
    axes, _ = drawn(figure)
    assert len(texts(figure)) == (num_classes**2 if num_classes <= 20 else 0)
    np.testing.assert_allclose(np.diag(axes.images[0].get_array())[1:], 100)
    assert not axes.images[0].get_array()[0].any()


HOSTILE = ["x" * 200, "日本語の名前", "two\nlines\t", "$", "", "a\u200bb", "кириллица"]


def tick_texts(axes):
    return [label.get_text() for label in axes.get_yticklabels()]


def test_hostile_class_names_fit_and_have_glyphs(monkeypatch):
    """A character without a glyph is a warning of matplotlib, and so an error here."""
    ours = [font for font in fontManager.ttflist if font.name.startswith(("DejaVu", "Last"))]
    monkeypatch.setattr(fontManager, "ttflist", ours)  # as on a system without other fonts
    figure = plots.confusion_matrix(np.eye(7), HOSTILE)
    axes, _ = drawn(figure)
    shown = tick_texts(axes)
    assert shown == ["0: xxxxxxxxxx…xxxxxxxxxx", "class 1", "two lines", "$", "class 4", "ab",
                     "кириллица"]  # fmt: skip
    assert "no installed font" in figure.get_supxlabel()
    box, window = axes.get_tightbbox(), figure.bbox
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert axes.get_window_extent().width > window.width / 3
    images, p = torch.zeros(7, 1, 4, 4, dtype=torch.uint8), torch.eye(7)
    panels = drawn(plots.certain_images(images, torch.arange(7), p, HOSTILE))
    assert {len(panel.get_title().splitlines()) for panel in panels} == {3}


def test_a_font_that_has_the_characters_is_taken(monkeypatch):
    monkeypatch.setattr(style, "_installed", lambda: {"DejaVu Sans": "ours", "Chinese": "theirs"})
    codes = {"ours": range(128), "theirs": map(ord, "日本語 ")}
    monkeypatch.setattr(style, "_characters", lambda path: frozenset(codes[path]))
    codes = {path: frozenset(values) for path, values in codes.items()}
    assert style.class_labels(["日本語", "cat"]) == style.Labels(
        ["日本語", "cat"], ["DejaVu Sans", "Chinese"]
    )
    assert style.class_labels(["日本語" * 9], width=16).texts == ["0: 日本語…日本語"]
    assert style.class_labels(["한국어"]).texts == ["class 0"]


def test_titles_are_one_line_with_glyphs():
    figure = Figure()
    style.set_title(figure, "a\nrun $of$ " + "long " * 40)
    drawn(figure)
    assert figure.get_suptitle().startswith("a run $of$ long")
    assert len(figure.get_suptitle()) <= 90


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([31.0, 34.0], {"30", "40"}),
        ([0.5, 3.9], {"0.5", "1", "2"}),
        ([7.0], {"5", "10"}),
        ([1e-3, 1e3], {"$\\mathdefault{10^{-3}}$", "$\\mathdefault{10^{3}}$"}),
    ],
)
def test_short_logarithmic_axes_have_plain_ticks(values, expected):
    (axes,) = drawn(plots.kl_terms([{"epoch": 1, **{f"kl/{v}": v for v in values}}]))
    low, high = axes.get_ylim()
    ticks = zip(axes.get_yticks(), tick_texts(axes), strict=True)
    inside = {text for place, text in ticks if low <= place <= high}
    assert expected <= inside
    assert not [text for text in inside if "times" in text]


@pytest.mark.parametrize(("num", "targets"), [(800, 1), (30, 4), (1, 1)])
def test_predictions_of_a_regression(num, targets):
    y = RNG.normal(size=(num, targets))
    std = np.full_like(y, 0.5)
    mean = y + 0.6
    mean[: num // 2] += 1.0  # beyond two standard deviations
    panels = drawn(plots.predicted_against_true(y, mean, std))
    assert len([panel for panel in panels if panel.axison]) == targets
    inside = 100 * (num - num // 2) / num
    rmse = math.sqrt(np.mean((mean - y)[:, 0] ** 2))
    assert f"RMSE {rmse:.4g}, {inside:.1f} % within ± 2 std, n = {num:,}" in panels[0].get_title()
    assert (panels[0].get_xlabel() == "true") == (num <= 500)
    low, high = panels[0].containers[0][2][0].get_segments()[0][:, 1]
    assert high - low == pytest.approx(4 * 0.5)


@pytest.mark.parametrize(
    ("num", "channels", "count"), [(30, 3, 8), (3, 1, 8), (1, 1, 1), (9, 2, 4)]
)
def test_certain_images_are_sorted_and_mistakes_are_red(num, channels, count):
    images = torch.randint(256, (num, channels, 6, 6), dtype=torch.uint8)
    p = torch.tensor(RNG.dirichlet([0.5] * 4, num))
    labels = p.argmax(1)
    labels[p.max(1).values.argmax()] += 1
    names = ["cat", "a dog of some very long name", "$", "ship", "frog"]
    axes = drawn(plots.certain_images(images, labels, p, names, count))
    columns = min(num, count)
    assert len(axes) == 2 * columns
    first, last = axes[0].title, axes[columns].title
    assert f"{100 * p.max():.1f} %" in first.get_text()
    assert f"{100 * p.max(1).values.min():.1f} %" in last.get_text()
    assert first.get_color() == "#C00000"
    assert num == 1 or last.get_color() != "#C00000"
    shown = axes[0].images[0].get_array()
    chosen = images[p.max(1).values.argmax()].double()
    expected = chosen if channels == 3 else chosen.mean(0, keepdim=True).expand(3, 6, 6)
    np.testing.assert_allclose(shown, expected.permute(1, 2, 0) / 255)


@pytest.mark.parametrize(("num", "channels"), [(1, 1), (10, 1), (64, 3), (512, 3), (5, 4)])
def test_inducing_patches_fill_a_grid(num, channels):
    (axes,) = drawn(plots.inducing_patches(torch.randn(num, channels, 3, 3)))
    expected = f"64 of {num}, 3×3" if num > 64 else f"{num}, 3×3"
    assert axes.get_title().startswith(f"Inducing patches\n{expected}")
    image = axes.images[0].get_array()
    assert image.min() >= 0
    assert image.max() <= 1


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_patches_without_contrast_are_drawn_too(value):
    drawn(plots.inducing_patches(torch.full((4, 3, 3, 3), value)))


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match="bins must agree"):
        plots.reliability_diagram([0.1], [0.1, 0.2], [1])
    with pytest.raises(ValueError, match="counts must be 3×3"):
        plots.confusion_matrix(np.eye(2), ["a", "b", "c"])
    with pytest.raises(ValueError, match="must agree"):
        plots.certain_images(np.zeros((0, 1, 2, 2)), [], np.zeros((0, 2)), ["a", "b"])
    with pytest.raises(ValueError, match=r"must agree, got \(3, 1\), \(2, 1\), \(3, 1\)"):
        plots.predicted_against_true(np.ones((3, 1)), np.ones((2, 1)), np.ones((3, 1)))
    with pytest.raises(ValueError, match="patches must have shape"):
        plots.inducing_patches(np.zeros((2, 3, 3)))


def test_saving_writes_a_png_and_nothing_else(tmp_path):
    path = tmp_path / "plots" / "curves.png"
    for rows in (ROWS[:1], ROWS):
        plots.save(plots.learning_curves(rows), path)
    assert path.read_bytes().startswith(b"\x89PNG\r\n\x1a\n")
    assert [file.name for file in path.parent.iterdir()] == ["curves.png"]

    class Broken(Figure):
        def savefig(self, *args, **kwargs):
            raise OSError("disk full")

    before = path.read_bytes()
    with pytest.raises(OSError, match="disk full"):
        plots.save(Broken(), path)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["curves.png"]


def test_plots_touch_no_global_state():
    code = """
import sys, matplotlib
from gramian.experiments.plots import training_plots as plots
before = matplotlib.rcParams.copy()
plots.learning_curves([{"epoch": 1, "objective": 1.0}])
assert matplotlib.rcParams.copy() == before
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_without_matplotlib_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "gramian.experiments.plots.training_plots")
    with pytest.raises(ImportError, match=r"pip install 'gramian\[plots\]'"):
        import gramian.experiments.plots.training_plots  # noqa: F401
