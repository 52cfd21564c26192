"""What others use for irregular series: two networks of the literature, and learners on tables of summaries."""

from torchcram.timeseries.rivals.grud import GruD
from torchcram.timeseries.rivals.mtand import Mtand
from torchcram.timeseries.rivals.tabular import Logistic, Majority, Trees, columns, running_table, table

__all__ = ["GruD", "Logistic", "Majority", "Mtand", "Trees", "columns", "running_table", "table"]
