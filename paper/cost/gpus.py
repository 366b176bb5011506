"""A step of the paper's model on 1 to 64 A100s, estimated: `python -m paper.cost.gpus gpus.png`.

The work of a step is counted on tensors without storage (`python -m paper cost`), for two
batch sizes: what grows with the batch is shared by the GPUs, the rest is the inducing chain, which
each of them computes; or those of a machine share its products (`--split_chain true`) and exchange
the parts. Then comes the sum of the gradients over all GPUs, by a ring. Nothing here is measured:
ASSUMED says what is taken for granted.
"""

import sys
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Model:
    """Seconds of a step: of the data at the published batch, of the chain; bytes that are summed.

    ``chain`` and ``exchanged`` are by the number of GPUs that share the chain.
    """

    data: float
    chain: dict[int, float]
    exchanged: dict[int, int]
    gradients: float
    steps: float

    def seconds(self, gpus: int, split: bool, per_gpu: bool) -> float:
        """Of a step; ``per_gpu``: the published batch on each GPU instead of over all."""
        data = self.data if per_gpu else self.data / gpus
        sharing = min(gpus, PER_NODE) if split else 1
        chain = self.chain[sharing] + exchange(sharing, self.exchanged[sharing])
        return data + chain + exchange(gpus, self.gradients)


def exchange(gpus: int, sent: float) -> float:
    """Seconds of sums over GPUs, by a ring, not hidden behind anything."""
    if gpus == 1:
        return 0.0
    rate = ASSUMED["inside" if gpus <= PER_NODE else "between"][0]
    small = ASSUMED["sums"][0] * ASSUMED["latency"][0]
    return 2 * (gpus - 1) / gpus * sent / rate + small


def count() -> Model:
    """From two batch sizes of the simulation, and from shares of the chain."""
    config, model = read_preset("paper")
    rates = calibrated_rates(None)

    def seconds(cost: StepCost) -> float:
        return rates.step_seconds(cost).total

    full, half = (dkm_step(model, batch, recompute=False) for batch in (256, 128))
    data = 2 * (seconds(full) - seconds(half))
    shares = {
        gpus: full if gpus == 1 else dkm_step(model, 256, recompute=False, sharing=gpus)
        for gpus in GPUS
        if gpus <= PER_NODE
    }
    return Model(
        data,
        {gpus: seconds(cost) - data for gpus, cost in shares.items()},
        {gpus: cost.exchanged_bytes for gpus, cost in shares.items()},
        full.memory.gradients,
        num_images(config) / config.batch_size,
    )


def main() -> None:
    """The table on the screen, and the plot."""
    model = count()
    chains = ", ".join(
        f"{gpus}: {1000 * seconds:.0f} ms and {model.exchanged[gpus] / 1e9:.1f} GB"
        for gpus, seconds in model.chain.items()
    )
    print(f"step: data {1000 * model.data:.0f} ms; chain, by the GPUs that share it: {chains}")
    print("| GPUs | epoch, 256 over all | the same, chain split | epoch, 256 on each | split |")
    print("|---:|---:|---:|---:|---:|")
    for gpus in GPUS:
        cells = []
        for per_gpu in (False, True):
            for split in (False, True):
                steps = model.steps / gpus if per_gpu else model.steps
                cells.append(f"{steps * model.seconds(gpus, split, per_gpu):.3g} s")
        print(f"| {gpus} | {' | '.join(cells)} |")
    figure, axes = plt.subplots(figsize=(6.2, 4.0), layout="constrained")
    one = model.seconds(1, False, False) * model.steps
    axes.plot(GPUS, [one / gpus for gpus in GPUS], color="0.7", label="ideal")
    for per_gpu, colour, batch in ((False, "C0", "256 over all"), (True, "C1", "256 on each")):
        for split, line, chain in ((False, "-o", "replicated"), (True, "--s", "split")):
            seconds = [
                (model.steps / gpus if per_gpu else model.steps)
                * model.seconds(gpus, split, per_gpu)
                for gpus in GPUS
            ]
            axes.plot(
                GPUS,
                seconds,
                line,
                color=colour,
                markersize=4,
                label=f"batch {batch}, chain {chain}",
            )
    axes.set(xscale="log", yscale="log", xlabel="A100s", ylabel="seconds of an epoch, estimated")
    axes.set_xticks(GPUS, [str(gpus) for gpus in GPUS])
    axes.minorticks_off()
    axes.set_yticks([2, 5, 10, 20, 50, 100], ["2", "5", "10", "20", "50", "100"])
    axes.legend(fontsize=8)
    save(figure, Path(sys.argv[1] if len(sys.argv) > 1 else "gpus.png"))


if __name__ == "__main__":
    main()
