"""A step of the paper's model on 1 to 64 A100s, estimated: `python -m paper.cost.gpus gpus.png`.

The work of a step is counted on tensors without storage (`python -m paper cost`), for two
batch sizes: what grows with the batch is shared by the GPUs, the rest is the inducing chain, which
each of them computes; or those of a machine share its products (`--split_chain true`) and exchange
the parts. Then comes the sum of the gradients over all GPUs, by a ring. Nothing here is measured:
ASSUMED says what is taken for granted.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from gramian.experiments.plots.style import save
from paper.cost.simulation import calibrated_rates, num_images, read_preset
from paper.cost.step_cost import StepCost, dkm_step

GPUS = (1, 2, 4, 8, 16, 32, 64)
PER_NODE = 8
ASSUMED = {
    "inside": (200e9, "bytes a second of a ring inside a machine of 8: NVLink, two thirds of 300"),
    "between": (20e9, "bytes a second between machines: one 200 Gb/s card each, four fifths of it"),
    "latency": (20e-6, "seconds of each of the small sums: two in each of 20 layers and back"),
    "sums": (80.0, "of those in a step"),
}


def exchange(gpus: int, sent: float) -> float:
    """Seconds of sums over GPUs, by a ring, not hidden behind anything."""
    if gpus == 1:
        return 0.0
    rate = ASSUMED["inside" if gpus <= PER_NODE else "between"][0]
    small = ASSUMED["sums"][0] * ASSUMED["latency"][0]
    return 2 * (gpus - 1) / gpus * sent / rate + small


def epochs() -> dict[tuple[bool, bool], list[float]]:
    """Seconds of an epoch by GPUs; keys: the published batch on each GPU, and the chain split.

    From two batch sizes of the simulation, and from shares of the chain.
    """
    config, model = read_preset("paper")
    rates = calibrated_rates(None)

    def seconds(cost: StepCost) -> float:
        return rates.step_seconds(cost).total

    full, half = (dkm_step(model, batch, recompute=False) for batch in (256, 128))
    of_data = 2 * (seconds(full) - seconds(half))
    chains = {}
    for sharing in (gpus for gpus in GPUS if gpus <= PER_NODE):
        cost = full if sharing == 1 else dkm_step(model, 256, recompute=False, sharing=sharing)
        sent = cost.exchanged_bytes
        chains[sharing] = seconds(cost) - of_data + exchange(sharing, sent)
        milliseconds, gigabytes = 1000 * chains[sharing], sent / 1e9
        print(f"chain on {sharing}: {milliseconds:.0f} ms with {gigabytes:.1f} GB exchanged")
    print(f"data of a step: {1000 * of_data:.0f} ms")

    def epoch(gpus: int, per_gpu: bool, split: bool) -> float:
        data, share = (of_data, 1 / gpus) if per_gpu else (of_data / gpus, 1.0)
        chain = chains[min(gpus, PER_NODE) if split else 1]
        step = data + chain + exchange(gpus, full.memory.gradients)
        return step * share * num_images(config) / config.batch_size

    return {
        (per_gpu, split): [epoch(gpus, per_gpu, split) for gpus in GPUS]
        for per_gpu in (False, True)
        for split in (False, True)
    }


def main() -> None:
    """The table on the screen, and the plot."""
    columns = epochs()
    print("| GPUs | epoch, 256 over all | the same, chain split | epoch, 256 on each | split |")
    print("|---:|---:|---:|---:|---:|")
    for gpus, *row in zip(GPUS, *columns.values(), strict=True):
        print(f"| {gpus} | {' | '.join(f'{seconds:.3g} s' for seconds in row)} |")
    figure, axes = plt.subplots(figsize=(6.2, 4.0), layout="constrained")
    one = columns[False, False][0]
    axes.plot(GPUS, [one / gpus for gpus in GPUS], color="0.7", label="ideal")
    for (per_gpu, split), seconds in columns.items():
        line, chain = ("--s", "split") if split else ("-o", "replicated")
        colour, batch = ("C1", "256 on each") if per_gpu else ("C0", "256 over all")
        label = f"batch {batch}, chain {chain}"
        axes.plot(GPUS, seconds, line, color=colour, markersize=4, label=label)
    axes.set(xscale="log", yscale="log", xlabel="A100s", ylabel="seconds of an epoch, estimated")
    axes.set_xticks(GPUS, [str(gpus) for gpus in GPUS])
    axes.minorticks_off()
    axes.set_yticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    axes.legend(fontsize=8)
    save(figure, Path(sys.argv[1] if len(sys.argv) > 1 else "gpus.png"))


if __name__ == "__main__":
    main()
