"""Train a small convolutional deep kernel machine with SKR on handwritten digits.

1,797 real 8×8 images that come with scikit-learn; 450 of them are held out.
"""

import time

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gramian import ConvDKM, ConvDKMConfig, objective

EPOCHS, BATCH, LEARNING_RATE = 40, 64, 0.01

generator = torch.Generator().manual_seed(0)
images, labels = load_digits(return_X_y=True)
x = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8)
train, test = train_test_split(range(len(x)), test_size=450, stratify=labels, random_state=0)
x = (x - x[train].mean()) / x[train].std()
x_train, x_test = x[train], x[test]
y_train, y_test = torch.tensor(labels)[train], torch.tensor(labels)[test]

config = ConvDKMConfig(
    image_shape=(1, 8, 8),
    num_inducing=(64, 64),
    strides=(2, 2),
    blocks_per_stage=1,
    num_samples=100,
    whitening=False,
    mixing_start="near_identity",
    output_start="kernel",
)
model = ConvDKM.from_config(config)
model.initialise_(x_train, generator)
num_parameters = sum(parameter.numel() for parameter in model.parameters())
print(f"ConvDKM: {num_parameters:,} parameters, {len(x_train):,} images, {config.skr}")

optimiser = torch.optim.Adam(model.parameters(), LEARNING_RATE, betas=(0.8, 0.9))
schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, [EPOCHS * 2 // 3, EPOCHS * 11 // 12])
start = time.perf_counter()
for epoch in range(1, EPOCHS + 1):
    total = torch.zeros(())
    batches = torch.randperm(len(x_train), generator=generator).split(BATCH)
    for batch in batches:
        result = model(x_train[batch], model.draw_noise(generator))
        samples = model.draw_samples(len(batch), generator)
        terms = objective(result, model.likelihood, y_train[batch], samples, len(x_train))
        optimiser.zero_grad()
        terms.loss.backward()
        optimiser.step()
        total += terms.total.detach() / len(batches)
    schedule.step()
    if epoch % 5 == 0:
        seconds = time.perf_counter() - start
        print(f"epoch {epoch:2d}/{EPOCHS}  objective {total:8.3f}  {seconds:4.0f} s", flush=True)

model.eval()
with torch.no_grad():
    q = model(x_test).marginals
    samples = model.draw_samples(1, generator)
    accuracy = (model.likelihood.predict(q, samples).argmax(1) == y_test).float().mean()
    log_likelihood = model.likelihood.log_marginal(q, y_test, samples).mean()
print(
    f"held out ({len(x_test)} images): accuracy {accuracy:.2%}, log-likelihood {log_likelihood:.4f}"
)
