"""Weight-only int8 quantisation, the same bits on every machine.

Only correctly rounded operations on single elements (division, rounding to nearest even) and the
maximum, which no order of evaluation changes: no sums, no library that may pick another kernel.
"""

import numpy as np
import numpy.typing as npt


def quantise_weight(
    weight: npt.NDArray[np.float32],
) -> tuple[npt.NDArray[np.int8], npt.NDArray[np.float32]]:
    """Symmetric int8 for each output channel: weight[o] ≈ quantised[o] × scale[o].

    Args:
        weight: float32 [O, …], output channels first.

    Returns:
        The int8 weight of the same shape, within ±127, and the float32 scales [O].
    """
    largest = np.abs(weight).reshape(len(weight), -1).max(axis=1)
    scale = np.where(largest > 0, largest / np.float32(127), np.float32(1)).astype(np.float32)
    steps = np.rint(weight / scale.reshape(-1, *[1] * (weight.ndim - 1)))
    return np.clip(steps, -127, 127).astype(np.int8), scale
