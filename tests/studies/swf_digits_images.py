"""Digits, their autoencoder and the features on which samples are scored: all of `swf-digits` that
is public.

scikit-learn's 1797 digits, 8x8 pixels of 0 to 16, are split afresh for every run: half is public
and trains the autoencoder and the features, three eighths are private, and an eighth is held out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from penstock.privacy.sensitivity import orthonormal_stack

Array = NDArray[np.float64]

LATENT, HIDDEN, FEATURES = 8, 128, 8
BATCH = 64
CODER_EPOCHS, CODER_RATE = 150, 2e-3
NET_EPOCHS, NET_RATE = 40, 2e-3


@dataclass(frozen=True, slots=True)
class Split:
    """Images (n, 64) in [0, 1] and labels (n,) of the public half; images of the other parts."""

    public: Array
    labels: NDArray[np.int64]
    private: Array
    held_out: Array
    held_out_labels: NDArray[np.int64]


def split_digits(seed: int) -> Split:
    """A random split of all digits: 899 public, 673 private, 225 held out."""
    from sklearn.datasets import load_digits

    pixels, labels = load_digits(return_X_y=True)
    images, labels = np.asarray(pixels, dtype=np.float64) / 16, np.asarray(labels, dtype=np.int64)
    order = np.random.default_rng([41, seed]).permutation(len(images))
    public, rest = np.split(order, [(len(images) + 1) // 2])
    held_out, private = np.split(rest, [(len(rest) + 3) // 4])
    return Split(
        images[public], labels[public], images[private], images[held_out], labels[held_out]
    )


class Autoencoder(nn.Module):
    """Dense layers to the unit sphere of ℝ⁸ and back to pixels in (0, 1)."""

    def __init__(self, pixels: int = 64) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            *(nn.Linear(pixels, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
            nn.Linear(HIDDEN, LATENT),
        )
        self.decoder = nn.Sequential(
            *(nn.Linear(LATENT, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN), nn.ReLU()),
            *(nn.Linear(HIDDEN, pixels), nn.Sigmoid()),
        )

    def forward(self, images: Tensor) -> Tensor:
        """(n, 64) images to their reconstructions."""
        decoded: Tensor = self.decoder(functional.normalize(self.encoder(images)))
        return decoded

    def encode(self, images: Array) -> Array:
        """(n, 64) images to (n, 8) latents of norm 1 (at most: rounding is towards 0)."""
        with torch.no_grad():
            latents = self.encoder(torch.as_tensor(images, dtype=torch.float32)).double().numpy()
        return on_sphere(latents)

    def decode(self, latents: Array) -> Array:
        """Latents, brought to norm 1, to images; whatever their length, a decoder knows no other.

        That is public post-processing, and the same for every method.
        """
        with torch.no_grad():
            made = self.decoder(torch.as_tensor(on_sphere(latents), dtype=torch.float32))
        images: Array = made.double().numpy()
        return images


def on_sphere(latents: Array) -> Array:
    """(n, d) rows to norm 1; a row of zeros to the first axis."""
    norms = np.linalg.norm(latents, axis=1, keepdims=True)
    first = np.zeros(latents.shape[1])
    first[0] = 1.0
    unit: Array = np.where(norms > 0, latents / np.where(norms > 0, norms, 1.0), first)
    return unit * (1 - 1e-12)


def fit_autoencoder(images: Array, seed: int) -> Autoencoder:
    """Mean squared error, Adam, a fixed number of epochs; for public images."""
    torch.manual_seed(seed)
    coder = Autoencoder()
    rows = torch.as_tensor(images, dtype=torch.float32)
    _descend(
        *(coder, len(rows), CODER_EPOCHS, CODER_RATE),
        lambda taken: functional.mse_loss(coder(rows[taken]), rows[taken]),
    )
    return coder.eval()


class FeatureNet(nn.Module):
    """A small convolutional classifier; its last hidden layer is the features."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten()),
            *(nn.Linear(512, FEATURES), nn.Tanh()),
        )
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, images: Tensor) -> Tensor:
        """(n, 64) images to logits."""
        logits: Tensor = self.head(self.body(images.reshape(-1, 1, 8, 8)))
        return logits


@dataclass(frozen=True, slots=True)
class Features:
    """Features in units of their standard deviation over the public images.

    Args:
        net: trained; scale: (FEATURES,).
    """

    net: FeatureNet
    scale: Array

    def of(self, images: Array) -> Array:
        """(n, 64) images to (n, FEATURES)."""
        with torch.no_grad():
            given = torch.as_tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8)
            found: Array = self.net.body(given).double().numpy()
        return found / self.scale

    def accuracy(self, images: Array, labels: NDArray[np.int64]) -> float:
        """Share of images that the classifier names rightly."""
        with torch.no_grad():
            named = self.net(torch.as_tensor(images, dtype=torch.float32)).argmax(dim=1).numpy()
        return float((named == labels).mean())


def fit_features(images: Array, labels: NDArray[np.int64], seed: int) -> Features:
    """Cross-entropy, Adam, a fixed number of epochs; for public images."""
    torch.manual_seed(seed)
    net = FeatureNet()
    rows = torch.as_tensor(images, dtype=torch.float32)
    named = torch.as_tensor(labels)
    _descend(
        *(net, len(rows), NET_EPOCHS, NET_RATE),
        lambda taken: functional.cross_entropy(net(rows[taken]), named[taken]),
    )
    net.eval()
    plain = Features(net, np.ones(FEATURES))
    return Features(net, np.maximum(plain.of(images).std(axis=0), 1e-6))


def _descend(
    model: nn.Module, n: int, epochs: int, rate: float, loss_of: Callable[[Tensor], Tensor]
) -> None:
    """Adam on shuffled batches of n rows; ``loss_of`` the rows taken."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    steps = epochs * -(-n // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps)
    for _ in range(epochs):
        for taken in torch.randperm(n).split(BATCH):
            loss = loss_of(taken)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
            schedule.step()


def frechet(a: Array, b: Array) -> float:
    r"""Squared Fréchet distance of two samples' Gaussians, as in the FID.

    .. math:: \|m_a - m_b\|^2 + \mathrm{tr}\,(C_a + C_b - 2 (C_a^{1/2} C_b C_a^{1/2})^{1/2})

    (Dowson & Landau 1982; Heusel et al. 2017). The last trace is the sum of the singular values of
    C_a^{1/2} C_b^{1/2}, which holds for singular covariances too.

    Args:
        a, b: (n, p) and (m, p), n and m at least 2; covariances have n - 1 in the denominator.

    Raises:
        ValueError: another shape, or a value that is not finite.
    """
    for given in (a, b):
        if given.ndim != 2 or len(given) < 2 or given.shape[1] != a.shape[1]:
            raise ValueError(f"a sample of another shape: {given.shape}")
        if not np.isfinite(given).all():
            raise ValueError("a value is not finite")
    roots = []
    for given in (a, b):
        values, vectors = np.linalg.eigh(np.atleast_2d(np.cov(given, rowvar=False)))
        roots.append((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T)
    apart = float(((a.mean(axis=0) - b.mean(axis=0)) ** 2).sum())
    spread = sum(float((root**2).sum()) for root in roots)
    shared = float(np.linalg.svd(roots[0] @ roots[1], compute_uv=False).sum())
    return max(0.0, apart + spread - 2 * shared)


def sliced_w2(a: Array, b: Array, rng: np.random.Generator, directions: int = 512) -> float:
    """Sliced W2 (no square) of two samples of any sizes, over stacked orthonormal bases.

    Quantiles at 1000 levels: (i + ½)/1000, linear between order statistics.
    """
    d = a.shape[1]
    theta = orthonormal_stack(-(-directions // d) * d, d, rng)
    levels = (np.arange(1000) + 0.5) / 1000
    apart = np.quantile(a @ theta, levels, axis=0) - np.quantile(b @ theta, levels, axis=0)
    return float(np.sqrt((apart**2).mean()))
