"""Tolerances: how far two outputs may be apart and still be the same answer.

Tolerances against the float64 reference follow from the number format and the size of the computation.

A number with p significant bits has a relative rounding error of at most u = 2^-p: 2^-24 in float32, 2^-11 in TF32 and
float16, 2^-8 in bfloat16. The tolerances follow from it, and are not fitted to results:

- *Loss.* A term is the result of at most `OPERATIONS` rounded operations, and the n terms are added up pairwise, as
  PyTorch's reductions do on a CPU and on a GPU: (OPERATIONS + log2 n) u, in the loss's format. Under autocast that is
  float32, as losses are not computed in 16 bits.
- *Gradient by the predictions.* Twice the operations, forward and backward, in the loss's format; the result has the
  predictions' format and can be rounded to it wherever the loss uses them: 2 (OPERATIONS + log2 n) u + USES u'.
- *Predictions.* Every layer rounds its weights, its input and its output to the format of its arithmetic, and adds up k
  products in float32. The roundings of d layers are independent of each other, so they add up like a random walk
  (Higham and Mary, SIAM J. Sci. Comput. 41, 2019): ROUNDINGS sqrt(d) u + sqrt(d k) 2^-24.
- *Gradient by the parameters*, in float32: the same, forward and backward, and a sum over all positions that a weight
  is used at. No kernel promises an order for it, and one after the other it may lose n u (Higham, Accuracy and
  Stability, 4.2): 2 ROUNDINGS sqrt(2 d) u + sqrt(2 d k) u + n u.

All are relative to the norm of the compared values. A sum with cancellation has a larger error, by the ratio of its
terms' norm to its own; the tolerance does not allow for it, so that such a formula is detected.

Imports no torch: a comparison of two programs by their records needs none.
"""

import math
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

#: The unit roundoff u of each number format.
ROUNDOFF: Final = {"float64": 2.0**-53, "float32": 2.0**-24, "tf32": 2.0**-11, "bfloat16": 2.0**-8, "float16": 2.0**-11}
_FLOAT32: Final = ROUNDOFF["float32"]
#: Rounding operations per layer: of its weights, its input and its output.
ROUNDINGS: Final = 3
#: Operations on the way from a prediction to a term of the loss.
OPERATIONS: Final = 32
#: How often a loss uses its predictions: each use rounds a share of their gradient to their format.
USES: Final = 4
#: Weights of fewer dimensions (biases, scales) are added or multiplied once, and do not count as a layer.
_MATRIX: Final = 2


def roundoff(dtype: object) -> float:
    """The unit roundoff u of a number format, a `torch.dtype`."""
    return ROUNDOFF[str(dtype).removeprefix("torch.")]


@dataclass
class NetworkSize:
    """Sizes that bound a network's rounding errors: layers, the longest sum of products, positions per weight."""

    depth: int
    terms: int
    positions: int = 1

    @classmethod
    def from_model(cls, model: Any) -> "NetworkSize":
        """The size of a model's layers by its weights; `watched` finds the positions."""
        shapes = [p.shape for p in model.parameters() if p.ndim >= _MATRIX]
        return cls(depth=max(len(shapes), 1), terms=max((shape[1:].numel() for shape in shapes), default=1))

    @contextmanager
    def watched(self, model: Any) -> Generator[None]:
        """A context that records the positions, from the outputs of the layers that are called in it."""

        def note(module: Any, _: Any, output: Any) -> None:
            shape = getattr(getattr(module, "weight", None), "shape", None)
            if shape is not None and hasattr(output, "numel"):
                self.positions = max(self.positions, output.numel() // shape[0])

        hooks = [module.register_forward_hook(note) for module in model.modules()]
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def predictions(self, dtype: object, products: object, *, tf32: bool) -> float:
        """The largest relative error of predictions of format `dtype` by matrix products of format `products`.

        The coarser format counts, since under autocast the last operation may be in float32.
        """
        unit = max(roundoff(dtype), roundoff(products), ROUNDOFF["tf32"] if tf32 else 0.0)
        return ROUNDINGS * math.sqrt(self.depth) * unit + math.sqrt(self.depth * self.terms) * _FLOAT32

    def parameters(self) -> float:
        """Largest relative error of the gradient by the parameters, in float32."""
        passes = 2 * self.depth  # forward and backward
        return (2 * ROUNDINGS * math.sqrt(passes) + math.sqrt(passes * self.terms) + self.positions) * _FLOAT32


def loss_tolerance(dtype: object, terms: int) -> float:
    """Largest relative error of a loss of format `dtype` over `terms` predictions."""
    return (OPERATIONS + math.log2(max(terms, 1))) * roundoff(dtype)


def gradient_tolerance(dtype: object, terms: int, predictions: object) -> float:
    """Largest relative error of such a loss's gradient by its predictions, which may have another format."""
    return 2 * loss_tolerance(dtype, terms) + USES * roundoff(predictions)
