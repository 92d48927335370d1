"""Attention as estimators of scikit-learn, over vectors: what a collection does with its documents.

The training vectors are keys, and what belongs to them the values. A new vector attends to the
nearest of them by a softmax whose scale makes held-out answers right; W is learned where there is
enough to learn from and held-out answers gain by it.

```
from sklearn.datasets import load_digits
from attend.connect.sklearn import AttentionClassifier

AttentionClassifier().fit(*load_digits(return_X_y=True)).predict_proba(x)
```
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    ClassNamePrefixFeaturesOutMixin,
    RegressorMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets, type_of_target
from sklearn.utils.validation import check_is_fitted, validate_data

from attend.attention import Softmax
from attend.core.arrays import kth_largest
from attend.core.types import Float64, Floats
from attend.learning.answer_model import (
    RECIPE,
    Answers,
    AnswerTargets,
    attend_fold,
    document_folds,
    fit_answers,
    fit_scale,
    fold_scores,
    joined,
)
from attend.learning.data import Memory, start_of
from attend.learning.fit import unlearned
from attend.projection import Projection, given, pca, spectrum

FOLDS = 3

LEAST = 60
"""Training vectors from which W is learned; fewer say little of others."""

RATES = {"maps": 2e-2, "scale": 5e-2, "null": 5e-2}
LEARNING = replace(RECIPE, name="vectors", rates=RATES, steps=(100, 400), drop=0.1)
"""Larger steps than for embeddings of texts, and more of them: columns of a table differ by far in
what they are good for."""

BLOCK = 1024
"""Vectors that attend at once."""


class Space(NamedTuple):
    """Where vectors are compared: a projection, the scale of logits there, and by share of the way
    to what was learned how right held-out answers are (higher is better)."""

    projection: Projection
    scale: float
    gains: dict[float, float]


def fit_space(
    x: Float64,
    targets: AnswerTargets,
    *,
    center: bool,
    learn: bool,
    dimensions: int | None = None,
    seed: int = 0,
) -> Space:
    """Return the space in which vectors (n, d) answer each other best, each fold by the others.

    Args:
        center: subtract the mean and append a constant, so that distances count and not directions
            alone: points that are near in space are near on the sphere.
        dimensions: width of the space; that of the vectors if None.
    """
    mean = x.mean(axis=0) if center else np.zeros(x.shape[1])
    spread = float(np.sqrt(((x - mean) ** 2).sum(axis=1).mean())) or 1.0
    constant = np.full((len(x), int(center)), spread)
    lifted = np.hstack([x - mean, constant]) / spread  # (n, d + 1)
    lengths = np.sqrt((lifted**2).sum(axis=1))[:, None]
    vectors = (lifted / np.maximum(lengths, np.finfo(np.float64).tiny)).astype(np.float32)
    rows = np.arange(len(x))
    memory = Memory(rows, np.arange(len(x) + 1), vectors, rows)
    groups = np.unique(vectors, axis=0, return_inverse=True)[1].ravel()
    answers = Answers(memory, vectors, groups, targets)
    start = start_of(memory, dimensions)
    folds = document_folds(groups, FOLDS, seed)
    fits = {0.0: [unlearned(memory, start)] * len(folds)}
    fit = partial(fit_answers, answers, start=start, recipe=LEARNING, seed=seed)
    if learn and len(x) >= LEAST:
        fits[1.0] = [fit(fold.members) for fold in folds]
        fits[0.5] = [fold.mixed(start, 0.5) for fold in fits[1.0]]
    scales = {0.0: (memory.scale, 0.0)}
    if len(folds) == FOLDS:
        for share, by_fold in fits.items():
            parts = [
                attend_fold(answers, fold, fold_scores(answers, fitted, fold))
                for fold, fitted in zip(folds, by_fold, strict=True)
            ]
            scales[share] = fit_scale(joined(parts), targets, by_fold[0].scale)
    share = max(scales, key=lambda share: scales[share][1])
    fitted = fit(rows).mixed(start, share) if share else unlearned(memory, start)
    w = fitted.w_q.astype(np.float64)  # (d_k, d + 1)
    bias = spread * w[:, -1] if center else None
    w = w[:, : x.shape[1]]
    both: dict[str, Any] = {
        "normalize_queries": True,
        "normalize_keys": True,
        "b_q": bias,
        "b_k": bias,
    }
    projection = given(w, w, center=mean, kind="learned", **both)
    return Space(projection, scales[share][0], {share: gain for share, (_, gain) in scales.items()})


class AttentionEstimator(BaseEstimator):
    """Base of the estimators: vectors that attend to those of the training.

    Args:
        attend: training vectors that each one attends to, the nearest.
        temperature: 1 is as fitted; below, the nearest count more.
        center: see `fit_space`; False for embeddings that are compared by their direction.
        learn: learn W from the training data, where that makes held-out answers better.
        random_state: of the folds and the training.

    Attributes:
        projection_: W_Q and W_K, an `attend.projection.Projection`.
        keys_: (n, d_k) the projected training vectors.
        values_: (n, v) what belongs to them.
        scale_: the factor on cosines.
        gains_: how right held-out answers are (log-likelihood, or squared error with its sign
            turned, in units of the variance) by share of the way to what was learned.
    """

    def __init__(
        self,
        *,
        attend: int = 100,
        temperature: float = 1.0,
        center: bool = True,
        learn: bool = True,
        random_state: Any = 0,
    ) -> None:
        self.attend = attend
        self.temperature = temperature
        self.center = center
        self.learn = learn
        self.random_state = random_state

    def _fit(self, x: Float64, targets: AnswerTargets, values: Float64) -> Self:
        if self.attend < 1 or not self.temperature > 0:
            raise ValueError(
                f"attend is {self.attend} and temperature {self.temperature}, but a number from 1 "
                f"up and one above 0 were expected; change them."
            )
        seed = int(check_random_state(self.random_state).randint(2**31))
        learn = self.learn and len(np.unique(values, axis=0)) > 1
        space = fit_space(x, targets, center=self.center, learn=learn, seed=seed)
        self.projection_, self.scale_, self.gains_ = space
        self.keys_, self.values_ = self.projection_.keys(x)[:, 0], values
        return self

    def attention(self, X: ArrayLike) -> Float64:
        """Return the weights (q, n) of the training vectors; each row sums to one."""
        check_is_fitted(self)
        return self._blend(X, np.eye(len(self.keys_)))

    def _blend(self, X: ArrayLike, values: Float64) -> Float64:
        """Return what vectors (q, d) attend to of values (n, v): (q, v)."""
        x, blends = validate_data(self, X, dtype=np.float64, reset=False), []
        for start in range(0, len(x), BLOCK):
            queries = self.projection_.queries(x[start : start + BLOCK])[:, 0]
            z = queries @ self.keys_.T  # (q, d_k) @ (d_k, n) -> (q, n)
            least = kth_largest(z, min(self.attend, z.shape[1]))
            z = np.where(z >= least, z * (self.scale_ / self.temperature), -np.inf)
            blends.append(Softmax.of(z).weights @ values)
        return np.concatenate(blends)


class AttentionClassifier(ClassifierMixin, AttentionEstimator):
    """Predicts the class with the largest share of the attention; the shares are probabilities.

    >>> x, y = [[0.0], [0.1], [1.0], [1.1]], ["low", "low", "high", "high"]
    >>> AttentionClassifier().fit(x, y).predict([[0.2]]).tolist()
    ['low']
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from vectors (n, d) and their classes (n,)."""
        x, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        targets, self.classes_ = labels_of(y)
        return self._fit(x, targets, targets.columns.astype(np.float64))

    def predict_proba(self, X: ArrayLike) -> Float64:
        """Return the share of each class (q, c), in the order of `classes_`."""
        check_is_fitted(self)
        return np.minimum(self._blend(X, self.values_), 1.0)  # sums may round up

    def predict(self, X: ArrayLike) -> Any:
        """Return the likeliest classes (q,)."""
        shares = self.predict_proba(X)
        return self.classes_[shares.argmax(axis=1)]


class AttentionRegressor(RegressorMixin, AttentionEstimator):
    """Predicts the mean of the numbers attended to, and their standard deviation.

    >>> x, y = [[0.0], [0.1], [1.0], [1.1]], [1.0, 1.0, 3.0, 3.0]
    >>> AttentionRegressor(attend=2).fit(x, y).predict([[0.05]]).tolist()
    [1.0]
    """

    def fit(self, X: ArrayLike, y: ArrayLike) -> Self:
        """Learn from vectors (n, d) and their numbers (n,)."""
        x, y = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        numbers = np.asarray(y, dtype=np.float64)[:, None]
        return self._fit(x, numbers_of(numbers), numbers)

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Return the means (q,); with `return_std` also the standard deviations (q,)."""
        check_is_fitted(self)
        mean, square = self._blend(X, np.hstack([self.values_, self.values_**2])).T
        return (mean, np.sqrt(np.maximum(square - mean**2, 0))) if return_std else mean


class EmbeddingProjector(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):
    """Projects vectors to where those with the same label, or near numbers, are near each other.

    Without `y` it projects to the principal components.

    Args:
        n_components: width of the result; that of the vectors, or their rank, if None.
        random_state: of the training.

    >>> EmbeddingProjector(1).fit_transform([[0.0, 0.0], [1.0, 0.1], [2.0, 0.0]]).shape
    (3, 1)
    """

    def __init__(self, n_components: int | None = None, *, random_state: Any = 0) -> None:
        self.n_components = n_components
        self.random_state = random_state

    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> Self:
        """Learn from vectors (n, d), and from classes or numbers (n,) if there are any."""
        if y is None:
            x = validate_data(self, X, dtype=np.float64, ensure_min_samples=2)
        else:
            x, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        width = self.n_components
        if width is not None and width > x.shape[1]:
            raise ValueError(f"n_components is {width}, but vectors have {x.shape[1]}; lower it.")
        if y is None:
            rank = max(len(spectrum(x, centered=True).values), 1)
            self.projection_ = pca(x, rank if width is None else width)
        else:
            is_number = type_of_target(y).startswith("continuous")
            targets = numbers_of(np.asarray(y)[:, None]) if is_number else labels_of(y)[0]
            seed = int(check_random_state(self.random_state).randint(2**31))
            space = fit_space(x, targets, center=True, learn=True, dimensions=width, seed=seed)
            self.projection_ = space.projection
        self._n_features_out = self.projection_.d_k
        return self

    def transform(self, X: ArrayLike) -> Floats:
        """Return the projected vectors (n, d_k); of length one if they were learned."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        return self.projection_.keys(x)[:, 0]


def labels_of(y: Any) -> tuple[AnswerTargets, Any]:
    """Return classes (n,) as targets, and the different ones, sorted."""
    classes, columns = np.unique(y, return_inverse=True)
    ones = np.ones(len(columns), dtype=np.float32)
    shape = len(columns), len(classes)
    shares = sparse.csr_array((ones, columns, np.arange(len(columns) + 1)), shape=shape)
    return AnswerTargets(shares=shares), classes


def numbers_of(numbers: Float64) -> AnswerTargets:
    """Return numbers (n, v) as targets, about their mean and in units of their spread."""
    center, spread = numbers.mean(axis=0), float(np.sqrt(numbers.var(axis=0).mean())) or 1.0
    return AnswerTargets(
        numbers=((numbers - center) / spread).astype(np.float32), center=center, spread=spread
    )
