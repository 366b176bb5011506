"""Reports of result folders that are built here, so that every number is known."""

import base64
import itertools
import json
import re
from html.parser import HTMLParser

import pytest
import yaml
from markdown_it import MarkdownIt
from scipy import stats

from gramian.experiments.plots.training_plots import Figure, save
from paper.published import quoted_rows
from paper.report import latex, markdown
from paper.report.command import run
from paper.report.curve_figures import curve_figure, our_lines
from paper.report.gather import ReportError, gather
from paper.report.grids import Cell, result_grid
from paper.report.plain_runs import plain_grid
from paper.report.precisions import precision_grids
from paper.report.results import PlainRun, RowResults, Run
from paper.report.write import write_report

EVIL = '<img src=x onerror="alert(1)"> & _50% | $x$'
ROWS = {  # key: (label, published, difference, {seed: (accuracy, log-likelihood), epoch, or None})
    "headline": (
        "Full method",
        "dkm_cifar10_headline",
        "",
        {0: (0.60, -1.10), 1: (0.62, -1.05), 2: (0.64, -1.15)},
    ),
    "no_taylor": (
        "No Taylor approximation",
        "dkm_no_taylor",
        "the exact KL instead of its Taylor expansion",
        {0: (0.61, -1.25), 1: (0.615, -1.22), 2: 7},
    ),
    "no_skr": (
        "No SKR",
        "dkm_no_skr",
        "neither sampling nor jitter",
        {0: (0.505, -1.60), 1: (0.50, -1.55), 2: (0.51, -1.62)},
    ),
    "one_run": (
        "No SKR but keep λ = 0.1",
        "dkm_no_skr_keep_jitter",
        "no sampling, but the jitter",
        {0: (0.55, -1.4), 1: 12, 2: 3},
    ),
    "zero_nu": ("ν = 0", "dkm_zero_nu", "no KL terms", {0: 2, 1: 2, 2: 3}),
    "slow": ("γ = P/2", "dkm_gamma_div2", "half the noise", {0: (0.58, -1.2), 1: None}),
    "evil": (EVIL, None, "a label to escape", {}),
}
DRAWN = ("headline", "no_taylor", "zero_nu")  # rows with curves; a figure takes a second


def write_json(path, value) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def make_run(folder, result, epochs: int) -> None:
    """A run folder: finished with figures, failed in an epoch, or unfinished."""
    accuracy, log_likelihood = result if isinstance(result, tuple) else (0.4, -1.7)
    last = result - 1 if isinstance(result, int) else epochs if result else epochs // 2
    rows = []
    for epoch in range(1, last + 1):
        share = 1 - 0.8**epoch
        row = {
            "epoch": epoch,
            "seconds": 12.5,
            "train_accuracy": 0.1 + (accuracy - 0.05) * share,
            "expected_log_likelihood": -2.4 + (log_likelihood + 2.4) * share,
        }
        if epoch % 2 == 0:
            row["test_accuracy"] = 0.1 + (accuracy - 0.1) * share
            row["test_log_likelihood"] = -99.0
            row["test_log_likelihood_clipped"] = -2.3 + (log_likelihood + 2.3) * share
        rows.append(row)
    folder.mkdir(parents=True)
    if folder.parent.name in DRAWN:
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    write_json(folder / "env.json", {"commit": "abc123def456"})
    if isinstance(result, tuple):
        figures = {"accuracy": accuracy, "log_likelihood": -99.0}
        figures["log_likelihood_clipped"] = log_likelihood
        facts = {"figures": {"test": figures}, "epochs": epochs, "train_seconds": 12.5 * epochs}
        write_json(folder / "result.json", facts)
    elif isinstance(result, int):
        facts = {"epoch": result, "step": 9, "layer": "stem.gram", "reason": "negative <diagonal>"}
        write_json(folder / "failure.json", facts)


def make_table(folder, rows=ROWS, **changes) -> None:
    """A result folder as ``python -m paper`` leaves it."""
    facts = {
        "name": "table3", "kind": "table", "scale": "small", "title": "Table 3: ablations",
        "data": "cifar10", "epochs": 20, "seeds": 3, "precision": "32-true",
        "headline": "headline",
    } | changes  # fmt: skip
    facts["rows"] = [
        {"key": key, "label": label, "published": published, "difference": difference}
        for key, (label, published, difference, _) in rows.items()
    ]
    facts["quoted"] = [
        {"label": row.label, "accuracy": row.accuracy, "log_likelihood": row.log_likelihood}
        for row in quoted_rows(facts["name"])
    ]
    write_json(folder / "experiment.json", facts)
    for key, (*_, seeds) in rows.items():
        for seed, result in seeds.items():
            make_run(folder / key / f"seed{seed}", result, facts["epochs"])


def make_runs(folder) -> None:
    """Two precisions of Table 3, Table 1 at full size, and a figure."""
    make_table(folder / "table3-small")
    other = {**ROWS, "no_skr": (*ROWS["no_skr"][:3], {0: 5, 1: 6, 2: 4})}
    fewer = {key: other[key] for key in ("headline", "no_skr")}
    facts = {"precision": "tf32-emulated"}
    make_table(folder / "table3-small-tf32-emulated", fewer, **facts)
    networks = {
        "headline": ROWS["headline"],
        "adam": ("Network (Adam)", "nn_cifar10_adam", "a network", {0: (0.65, -1.9)}),
    }
    facts = {"name": "table1", "scale": "paper", "title": "Table 1: CIFAR-10"}
    make_table(folder / "table1-paper", networks, **facts, epochs=1200, seeds=4)
    facts = {"name": "conditions", "kind": "conditions", "title": "Condition numbers"}
    write_json(folder / "figure-conditions" / "experiment.json", facts)
    figure = Figure(figsize=(7, 2.5))
    for axes in figure.subplots(1, 3):
        axes.plot([1, 2, 3], [1, 3, 2])
    save(figure, folder / "figure-conditions" / "figure.png")
    make_run(folder / "unrelated-run", (0.5, -1.0), 4)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results") / "runs"
    make_runs(folder)
    return folder


@pytest.fixture(scope="module")
def report(runs):
    return write_report(runs, runs / "report")


@pytest.fixture(scope="module")
def table(runs):
    return gather([runs / "table3-small"]).tables[0]


@pytest.fixture(scope="module")
def lines(table):
    """Texts of each row of Table 3, by heading."""
    grid = result_grid(table)
    return {
        line.label: dict(zip(grid.headings[1:], (cell.text for cell in line.cells), strict=True))
        for line in grid.lines
    }


# ---- numbers ----


def test_means_errors_and_published_values(lines):
    line = lines["Full method"]
    assert line["Accuracy (%), ours"] == "62.00 ± 1.15 (3)"
    assert line["Accuracy (%), published, full size"] == "94.52 ± 0.0693"
    assert line["Log-likelihood, ours"] == "−1.1000 ± 0.0289 (3)"  # the clipped one
    assert line["Log-likelihood, published, full size"] == "−0.3611 ± 0.0073"
    assert line["Failed, ours"] == "0/3"
    assert line["Failed, published, full size"] == "0/4"
    assert line["p, accuracy"] == line["p, log-likelihood"] == "–"
    assert line["s / epoch, ours"] == "12.5"


def test_failed_runs_are_not_in_the_means(lines):
    line = lines["No Taylor approximation"]
    assert line["Accuracy (%), ours"] == "61.25 ± 0.25 (2)"
    assert line["Failed, ours"] == "1/3 (epoch 7)"
    assert line["Failed, published, full size"] == "1/4 (epoch 81)"
    line = lines["No SKR but keep λ = 0.1"]
    assert line["Accuracy (%), ours"] == "55.00 (1 run)"
    assert line["Failed, ours"] == "2/3 (epochs 12, 3)"
    assert line["p, accuracy"] == "–"
    line = lines["ν = 0"]
    assert line["Accuracy (%), ours"] == line["Log-likelihood, ours"] == "Fail"
    assert line["Accuracy (%), published, full size"] == "Fail"
    assert line["Failed, ours"] == "3/3 (epochs 2, 2, 3)"


def test_unfinished_runs_are_counted(lines, table):
    assert lines["γ = P/2"]["Accuracy (%), ours"] == "58.00 (1 run)"
    assert lines["γ = P/2"]["Failed, ours"] == "0/3; 2 unfinished"
    assert lines["γ = P/2"]["Accuracy (%), published, full size"] == "94.46 ± 0.0595"  # from logs
    assert lines[EVIL]["Accuracy (%), ours"] == "unfinished"
    assert lines[EVIL]["Failed, ours"] == "0/3; 3 unfinished"
    assert lines[EVIL]["s / epoch, ours"] == "–"
    assert "Preliminary: 5 of 21 runs are unfinished." in result_grid(table).warnings


def test_p_values_are_welchs_against_the_headline(lines):
    accuracy = stats.ttest_ind([0.60, 0.62, 0.64], [0.505, 0.50, 0.51], equal_var=False).pvalue
    likelihood = stats.ttest_ind([-1.10, -1.05, -1.15], [-1.25, -1.22], equal_var=False).pvalue
    assert float(lines["No SKR"]["p, accuracy"]) == pytest.approx(accuracy, rel=1e-3)
    text = lines["No Taylor approximation"]["p, log-likelihood"]
    assert float(text) == pytest.approx(likelihood, rel=1e-3)


def test_metrics_may_be_recorded_by_either_name(tmp_path):
    """result.json said ``figures`` before it said ``metrics``."""
    make_table(tmp_path)
    path = tmp_path / "headline" / "seed0" / "result.json"
    facts = json.loads(path.read_text())
    write_json(path, {"metrics": facts.pop("figures"), **facts})
    assert gather([tmp_path]).tables[0].rows[0].runs[0].accuracy == 0.6


def test_scales_cannot_be_confused(runs, tmp_path):
    small, paper = (
        result_grid(gather([runs / name]).tables[0]) for name in ("table3-small", "table1-paper")
    )
    assert small.title == "Table 3: ablations — small scale, float32"
    assert "small scale, 20 epochs on cifar10" in small.warnings[0]
    assert "full-size" in small.warnings[0]
    assert all("full size" in text for text in small.headings if "published" in text)
    assert paper.title == "Table 1: CIFAR-10 — full size, float32"
    assert not [text for text in (*paper.headings, *paper.warnings) if "full" in text]
    make_table(tmp_path, {"headline": ROWS["headline"]}, scale="paper")  # but 20 epochs
    changed = result_grid(gather([tmp_path]).tables[0])
    assert changed.title == "Table 3: ablations — paper scale, float32"
    assert "paper scale, 20 epochs on cifar10" in changed.warnings[0]


def test_a_table_beyond_the_paper_does_not_pretend_to_be_of_it(tmp_path):
    rows = {"headline": ("DKM", None, "", {0: (0.5, -1.0), 1: (0.6, -0.9)})}
    make_table(tmp_path, rows, name="few", title="Few images")
    table = gather([tmp_path]).tables[0]
    assert table.rows[0].values("log_likelihood") == (-99.0, -99.0)  # unclipped, unlike the paper's
    grid = result_grid(table)
    assert not [heading for heading in grid.headings if "published" in heading]
    assert len(grid.headings) == 7
    assert len(grid.lines[0].cells) == 6
    assert (grid.subtitle, grid.warnings) == (
        "cifar10, 3 seeds",
        ("Preliminary: 1 of 3 runs are unfinished.",),
    )
    write_report(tmp_path, tmp_path / "report")
    text = (tmp_path / "report" / "report.html").read_text()
    assert "the paper" not in text.replace("as in the paper", "").replace("As in the paper", "")


def test_curves_are_clipped_where_the_table_is():
    epochs = ({"epoch": 1, "test_log_likelihood": -3.0, "test_log_likelihood_clipped": -2.0},)
    facts = {"seed": 0, "metrics": {}, "failure": None, "seconds_per_epoch": None, "commit": None}
    for clipped, value in ((True, -2.0), (False, -3.0)):
        run = Run(clipped=clipped, epochs=epochs, **facts)
        row = RowResults("k", "label", "", None, runs=(run,), planned=1)
        (line,) = our_lines(row, "log_likelihood")
        assert line.values == (value,)


def test_quoted_rows_are_marked_and_as_printed(runs):
    grid = result_grid(gather([runs / "table1-paper"]).tables[0])
    quoted = {line.label: [cell.text for cell in line.cells] for line in grid.lines if line.quoted}
    assert len(quoted) == 3
    milsom = quoted["Conv. Deep Kernel Machine (Milsom et al., 2024)"]
    assert milsom == ["–", "92.69 ± 0.0600", "–", "−0.6502 ± 0.0125", *["–"] * 5]
    assert quoted["NNGP-LAP-flip (Li et al., 2019)"][1:4] == ["88.92", "–", "–"]


def test_failures_by_precision(runs):
    (grid,) = precision_grids(gather([runs]).tables)
    assert grid.headings[1:3] == ("Failed, float32", "Failed, TF32 (emulated)")
    cells = {line.label: [cell.text for cell in line.cells] for line in grid.lines}
    assert cells["No SKR"][:3] == ["0/3", "3/3 (epochs 5, 6, 4)", "2/4 (epochs 540, 635)"]
    assert cells["ν = 0"][:3] == ["3/3 (epochs 2, 2, 3)", "–", "4/4 (epochs 26, 26, 25, 26)"]
    assert grid.headings[4:] == ("Step of failure, float32", "Step of failure, TF32 (emulated)")
    assert cells["No SKR"][3:] == ["–", "9"]  # all fail in step 9
    assert cells["ν = 0"][3:] == ["9", "–"]
    assert precision_grids(gather([runs / "table3-small"]).tables) == []


def test_medians_of_steps_and_of_the_last_condition_numbers(tmp_path):
    for precision in ("32-true", "tf32-emulated"):
        make_table(tmp_path / precision, precision=precision)
    for seed, step in enumerate((1200, 700, 5000)):
        run = tmp_path / "32-true" / "zero_nu" / f"seed{seed}"
        write_json(run / "failure.json", {"epoch": 9, "step": step})
        rows = [{"epoch": 1, "condition/a": 1e9}, {"epoch": 2, "condition/a": 10.0 + seed}]
        rows[1] |= {"condition/b": 200.0 * (1 + seed)}
        rows += [{"epoch": 3}]  # no evaluation
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (grid,) = precision_grids(gather([tmp_path]).tables)
    cells = {
        line.label: dict(zip(grid.headings[1:], line.cells, strict=True)) for line in grid.lines
    }
    assert cells["ν = 0"]["Step of failure, float32"] == Cell("1,200", 1200)
    assert cells["ν = 0"]["Condition number, float32"] == Cell("4.0e+02", 400.0)
    assert cells["No SKR"]["Condition number, float32"].text == "–"
    assert "Condition number, TF32 (emulated)" not in grid.headings


def test_plain_log_likelihood_where_no_clipped_one_was_recorded(tmp_path):
    make_table(tmp_path)
    path = tmp_path / "headline" / "seed0" / "result.json"
    figures = {"accuracy": 0.5, "log_likelihood": -2.0}
    write_json(path, {"figures": {"test": figures}, "epochs": 20, "train_seconds": 40.0})
    (path.parent / "metrics.jsonl").unlink()
    table = gather([tmp_path]).tables[0]
    first = table.rows[0].runs[0]
    assert (first.log_likelihood, first.clipped, first.seconds_per_epoch) == (-2.0, False, 2.0)
    assert any("are the clipped ones" in note for note in result_grid(table).notes)


def test_log_likelihoods_of_networks_are_not_clipped(tmp_path):
    make_table(tmp_path)
    path = tmp_path / "experiment.json"
    facts = json.loads(path.read_text())
    facts["rows"][0]["kind"] = "network"
    write_json(path, facts)
    first, second = (row.runs[0] for row in gather([tmp_path]).tables[0].rows[:2])
    assert (first.log_likelihood, first.clipped) == (-99.0, False)
    assert second.clipped


# ---- plain runs ----


def make_plain_run(folder, metrics, **settings) -> None:
    """A run folder as ``gramian train`` leaves it; unfinished without metrics."""
    config = {"kind": "dense", "data": "wine", "lr": 0.01, "seed": 0, "model": {"nu": 1.0}}
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(yaml.safe_dump(config | settings))
    rows = [{"epoch": e, "seconds": 0.5, "objective": -1.0 / e, "test_rmse": 1 / e} for e in (1, 2)]
    if folder.name != "b":  # a figure takes a second
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    if metrics is not None:
        facts = {"figures": {"test": metrics}, "epochs": 2, "train_seconds": 1.0}
        write_json(folder / "result.json", facts)


@pytest.fixture
def plain(tmp_path):
    accuracy = {"accuracy": 0.9, "log_likelihood": -0.3, "log_likelihood_clipped": -0.2}
    make_plain_run(tmp_path / "a", accuracy)
    make_plain_run(tmp_path / "b", {"rmse": 0.5, "coverage95": 0.94}, lr=0.1, model={"nu": 2.0})
    make_plain_run(tmp_path / EVIL.replace("/", ""), None, seed=1, kind="network", model={"w": 3})
    write_json(tmp_path / "c" / "failure.json", {"epoch": 2, "reason": "not finite"})
    (tmp_path / "c" / "config.yaml").write_text("seed: 3\nlr: 0.01\nkind: dense\ndata: wine\n")
    return tmp_path


def test_plain_runs_are_a_table_of_metrics_and_of_settings_that_differ(plain):
    grid = plain_grid(gather([plain]).plain_runs)
    assert grid.headings == ("Run", "Accuracy (%)", "RMSE", "Log-likelihood",
                             "Coverage of 95 % intervals (%)", "Epochs", "s / epoch",
                             "kind", "lr", "seed")  # fmt: skip
    found = {line.label: [cell.text for cell in line.cells] for line in grid.lines}
    assert found["a"] == ["90.00", "–", "−0.3000", "–", "2", "0.500", "dense", "0.01", "0"]
    assert found["b"] == ["–", "0.5000", "–", "94.0", "0", "0.500", "dense", "0.1", "0"]
    assert found["c"] == ["–", "–", "–", "–", "0", "–", "dense", "0.01", "3"]
    assert {line.label: line.note for line in grid.lines} == {
        "a": "", "b": "", "c": "failed", EVIL.replace("/", ""): "unfinished",
    }  # fmt: skip
    assert grid.failures == ("c, epoch 2: not finite",)


def test_only_so_many_settings_have_columns():
    runs = [
        PlainRun(str(k), {f"s{n}": k for n in range(11)}, Run(0, {}, False, None, None, (), None))
        for k in range(2)
    ]
    grid = plain_grid(runs)
    assert grid.headings[-8:] == tuple(f"s{n}" for n in range(8))
    assert grid.notes[-1] == "They differ in more settings: s8, s9, s10."


def test_a_report_of_plain_runs(plain, tmp_path):
    paths = write_report(plain, tmp_path / "report")
    page = (tmp_path / "report" / "report.html").read_text()
    assert "<h1>Deep kernel machines: runs</h1>" in page
    assert page.count("<img ") == 2  # a and the one under way
    assert 'onerror="' not in page
    assert {path.suffix for path in paths} == {".html", ".md", ".tex", ".png", ".pdf"}
    assert [found.key for found in gather([plain / "a"]).plain_runs] == ["a"]


@pytest.mark.parametrize("text", ["{", "- 1", "just text"])
def test_a_damaged_config_is_named(tmp_path, text):
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(ReportError, match=r"config\.yaml is damaged"):
        gather([tmp_path])


# ---- Markdown and LaTeX ----


def test_markdown_tables_are_tables(runs, report):
    html = MarkdownIt("commonmark").enable("table").render((runs / "report/report.md").read_text())
    tables = re.findall(r"<table>.*?</table>", html, re.DOTALL)
    assert len(tables) == 4
    for text, columns in zip(tables, (10, 10, 10, 6), strict=True):
        rows = re.findall(r"<tr>.*?</tr>", text, re.DOTALL)
        assert {len(re.findall(r"<t[hd]", row)) for row in rows} == {columns}
    assert "<img" not in html
    assert "&lt;img src=x" in html
    assert "62.00 ± 1.15 (3)" in html
    assert "No Taylor approximation, seed 2, epoch 7: stem.gram: negative &lt;diagonal&gt;" in html


def test_latex_is_balanced_and_has_its_columns(runs, report):
    text = (runs / "report/report.tex").read_text()
    assert text.isascii()
    assert re.findall(r"\\begin\{(\w+\*?)\}", text) == ["table*", "tabular"] * 4
    assert re.findall(r"\\end\{(\w+\*?)\}", text) == ["tabular", "table*"] * 4
    bare = re.sub(r"\\[\\{}$&%#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0
    for part in text.split("\\begin{tabular}")[1:]:
        columns = len(re.match(r"\{([lr]+)\}", part)[1])
        rows = [line for line in part.split("\\end{tabular}")[0].splitlines() if " & " in line]
        assert len(rows) > 2
        for row in rows:
            assert len(re.findall(r"(?<!\\)&", row)) == columns - 1
            assert row.endswith(" \\\\")
    assert r"62.00 $\pm$ 1.15 (3)" in text
    assert r"$-$0.3611" in text


def test_escapes():
    assert markdown.escape("a|b_c*\n<d>") == r"a\|b\_c\* \<d\>"
    assert latex.escape("50% of ν_ℓ\\") == r"50\% of $\nu$\_$\ell$\textbackslash{}"


# ---- page and figures ----


class Page(HTMLParser):
    """Counts tags, and checks that they are closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_whole_and_escapes_labels(runs, report):
    text = (runs / "report/report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    tags = [tag for tag, _ in page.found]
    images = [attributes for tag, attributes in page.found if tag == "img"]
    assert "onerror" not in {key for image in images for key in image}
    assert all(image["alt"] for image in images)
    assert all(image["src"].startswith("data:image/png;base64,") for image in images)
    picture = base64.b64encode((runs / "figure-conditions/figure.png").read_bytes()).decode()
    assert images[-1]["src"].endswith(picture)
    assert tags.count("table") == 4
    assert tags.count("button") == 36
    names = [attributes["id"] for _, attributes in page.found if "id" in attributes]
    assert len(names) == len(set(names))
    links = {attributes["href"] for tag, attributes in page.found if tag == "a"}
    assert links <= {f"#{name}" for name in names}
    assert len(links) == 5
    assert "http" not in re.sub(r"http-equiv", "", text)
    assert "abc123def456" in text


def test_headings_have_even_levels(runs, report):
    """A title, a heading per section, and the same parts below each."""
    html = (runs / "report/report.html").read_text()
    text = (runs / "report/report.md").read_text()
    markdown = [line for line in text.splitlines() if line.startswith("#")]
    assert [line.split()[0] for line in markdown].count("#") == 1
    assert {line for line in markdown if line.startswith("### ")} == {
        "### Rows", "### Notes", "### Failures",
    }  # fmt: skip
    titles = re.findall(r"<h2[^>]*>([^<]*)</h2>", html)
    assert len(titles) == 5
    assert all(re.match(r"(Table \d|Figure): ", title) for title in titles[:4])
    assert set(re.findall(r"<h3>([^<]*)</h3>", html)) == {"Notes", "Failures", "Learning curves"}
    levels = [int(level) for level in re.findall(r"<h([1-6])", html)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))


def test_every_row_with_epochs_is_drawn(runs, report):
    folder = runs / "report"
    names = {path.name for path in report if path.parent == folder / "figures"}
    rows = [f"table3-small-{key}" for key in DRAWN]
    rows += ["table3-small-tf32-emulated-headline", "table1-paper-headline"]
    assert names == {f"{row}.{kind}" for row in rows for kind in ("png", "pdf")}
    assert set(report) == {path for path in folder.rglob("*") if path.is_file()}
    for path in report:
        start = {".png": b"\x89PNG", ".pdf": b"%PDF"}.get(path.suffix, b"")
        assert path.read_bytes().startswith(start)


def test_curves_show_ours_published_and_failures(table):
    rows = {row.key: row for row in table.rows}
    figure = curve_figure(table, rows["no_taylor"])
    accuracy, likelihood = figure.axes
    assert accuracy.get_xscale() == "log"  # 20 epochs beside 1200
    assert len(accuracy.lines) == 2 * 3 + 2 * 4
    labels = accuracy.get_legend_handles_labels()[1]
    assert {"ours, test", "ours, training", "published, full size, test"} <= set(labels)
    assert {"ours, failed", "published, full size, failed"} <= set(labels)
    ours = [line for line in accuracy.lines if max(line.get_xdata()) <= 20]
    assert max(ours[-2].get_ydata()) == pytest.approx(100 * (0.1 + 0.515 * (1 - 0.8**20)))
    assert likelihood.get_ylim()[0] > -4  # neither the plain −99 nor the first epochs
    assert curve_figure(table, rows["evil"]) is None


def test_a_report_is_the_same_each_time(runs, report, tmp_path):
    folder = runs / "table3-small-tf32-emulated"
    again = write_report([folder, folder], tmp_path)
    first = {path.name: path for path in report}
    figures = [path for path in again if path.parent.name == "figures"]
    assert len(figures) == 2
    for path in figures:
        assert path.read_bytes() == first[path.name].read_bytes()


def test_folders_of_the_same_name_are_kept_apart(runs, tmp_path):
    make_table(tmp_path / "other" / "table3-small", {"headline": ROWS["headline"]})
    keys = [table.key for table in gather([runs, tmp_path / "other"]).tables]
    assert keys[1] == "runs-table3-small"
    assert keys[-1] == "other-table3-small"


# ---- the command, and bad input ----


def test_the_command_writes_to_its_runs_and_lists_the_files(tmp_path, capsys):
    make_table(tmp_path, {"no_skr": ROWS["no_skr"]}, headline="no_skr")
    run([str(tmp_path)])
    files = capsys.readouterr().out.split()
    assert files[0] == str(tmp_path / "report" / "report.html")
    run([str(tmp_path), "--output", str(tmp_path / "b"), "--json"])
    files = json.loads(capsys.readouterr().out)["files"]
    assert str(tmp_path / "b" / "report.tex") in files


def test_no_results(tmp_path):
    with pytest.raises(ReportError, match=r"no results in .* experiment\.json .* config\.yaml"):
        run([str(tmp_path)])
    with pytest.raises(ReportError, match="nowhere is no folder"):
        run([str(tmp_path / "nowhere")])
    write_json(tmp_path / "experiment.json", {"kind": "conditions", "title": "Conditions"})
    with pytest.raises(ReportError, match=r"no figure\.png"):
        run([str(tmp_path)])
    assert ReportError.exit_code == 4


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("experiment.json", '{"kind": "table", "na', "is damaged"),
        ("experiment.json", '{"kind": "table"}', "lacks 'rows'|lacks 'seeds'"),
        ("experiment.json", '{"kind": "tables"}', "got 'tables'"),
        (
            "experiment.json",
            '{"kind": "table", "seeds": 3, "rows": null}',
            "is damaged: 'NoneType'",
        ),
        ("headline/seed1/result.json", "", "is damaged"),
        ("headline/seed1/result.json", "[]", "is damaged: it holds no names"),
        ("headline/seed1/result.json", '{"figures": {}}', "no complete test metrics: 'test'"),
        ("headline/seed1/metrics.jsonl", '{"epoch": 1}\n{"ep', "line 2 is damaged"),
        ("headline/seed1/metrics.jsonl", "{}\n", "line 1 is damaged: no epoch"),
        ("headline/seed1/env.json", "\0", "is damaged"),
        ("headline/seed1/metrics.jsonl", '{"epoch": "1"}\n', "epoch is no number"),
        ("headline/seed1/result.json", '{"metrics": null}', "no complete test metrics"),
        ("no_taylor/seed2/failure.json", "{}", "in which epoch"),
    ],
)
def test_damaged_files_are_named(tmp_path, name, text, message):
    make_table(tmp_path)
    (tmp_path / name).write_text(text)
    with pytest.raises(ReportError, match=message) as caught:
        gather([tmp_path])
    assert str(tmp_path / name) in str(caught.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [({"headline": "none"}, "headline is none of headline"), ({}, "'what' is no published")],
)
def test_wrong_experiments_are_refused(tmp_path, change, message):
    published = "what" if not change else None
    make_table(tmp_path, {"headline": ("Full", published, "", {})}, **change)
    with pytest.raises(ReportError, match=message):
        gather([tmp_path])
