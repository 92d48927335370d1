"""The estimators: scikit-learn's own checks, and beside its nearest neighbours."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.datasets import load_diabetes, load_digits
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from attend.connect.sklearn import AttentionClassifier, AttentionRegressor, EmbeddingProjector


@parametrize_with_checks([AttentionClassifier(), AttentionRegressor(), EmbeddingProjector()])
def test_checks_of_scikit_learn(estimator, check):
    check(estimator)
