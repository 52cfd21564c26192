"""Irregular time series: data sets with their protocols, `fit` and `predict`, and models to compare with."""

from torchcram.timeseries.arrays import as_series, from_aeon, from_triplets
from torchcram.timeseries.datasets import DATASETS, split
from torchcram.timeseries.estimators import CramClassifier, CramLabeller
from torchcram.timeseries.explaining import Explained
from torchcram.timeseries.series import UNKNOWN, Series, Split

__all__ = [
    "DATASETS",
    "UNKNOWN",
    "CramClassifier",
    "CramLabeller",
    "Explained",
    "Series",
    "Split",
    "as_series",
    "from_aeon",
    "from_triplets",
    "split",
]
