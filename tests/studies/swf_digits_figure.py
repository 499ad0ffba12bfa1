"""The picture of `swf-digits`: decoded digits of the first run, as its paper's figures 2 to 4."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.studies.lni import GREY, INK
from tests.support.results import RESULTS

Array = NDArray[np.float64]

ACROSS, DOWN = 10, 3
SHOWN = ACROSS * DOWN
"""Images of each method at each ε: the first ones, not chosen."""

_GAP = 1


def draw(
    real: Mapping[str, Array], made: Mapping[tuple[str, str], Array], columns: Sequence[str]
) -> None:
    """``swf-digits.png`` beside the table.

    Args:
        real: what to compare with, by name, in the first row; (SHOWN, 64) each.
        made: by method and column, (SHOWN, 64) each; columns: in order.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(method for method, _ in made))
    style: dict[Any, Any] = {"font.size": 8, "text.color": INK, "axes.titlesize": 8.5}
    RESULTS.mkdir(exist_ok=True)
    with rc_context(style):
        size = (3.3 * len(columns), 1.25 * (len(methods) + 1) + 0.3)
        figure = Figure(figsize=size, layout="constrained", facecolor="white")
        axes: Any = figure.subplots(len(methods) + 1, len(columns), squeeze=False)
        for ax in axes.flat:
            ax.set_axis_off()
        for ax, (name, images) in zip(axes[0], real.items(), strict=False):
            _show(ax, images, name)
        for line, method in zip(axes[1:], methods, strict=True):
            for ax, column in zip(line, columns, strict=True):
                _show(ax, made[method, column], f"{method}, {column}")
        figure.savefig(RESULTS / "swf-digits.png", dpi=120)


def _show(ax: Any, images: Array, title: str) -> None:
    ax.imshow(tiled(images), cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    ax.set_title(title, loc="left", color=INK, pad=3)
    ax.set_axis_on()
    ax.set(xticks=[], yticks=[])
    for side in ax.spines.values():
        side.set(color=GREY, linewidth=0.4)


def tiled(images: Array) -> Array:
    """(SHOWN, 64) images in ``DOWN`` rows of ``ACROSS``, a white pixel between them."""
    squares = np.zeros((DOWN, ACROSS, 8 + _GAP, 8 + _GAP))
    squares[:, :, :8, :8] = images.reshape(DOWN, ACROSS, 8, 8)
    side = 8 + _GAP
    whole: Array = squares.transpose(0, 2, 1, 3).reshape(DOWN * side, ACROSS * side)
    return whole[:-_GAP, :-_GAP]
