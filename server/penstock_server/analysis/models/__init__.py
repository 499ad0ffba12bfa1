"""How each model of a study is fitted to a table, in one closed registry."""

from __future__ import annotations

from penstock.questions.models import MODELS
from penstock.questions.models.registry import ModelRegistry
from penstock_server.analysis.models.cox import CoxTable
from penstock_server.analysis.models.linear import LinearTable
from penstock_server.analysis.models.logistic import LogisticTable
from penstock_server.analysis.models.mean import MeanTable
from penstock_server.analysis.models.poisson import PoissonTable
from penstock_server.analysis.models.table_model import TableModel

TABLE_MODELS: ModelRegistry[TableModel] = ModelRegistry(
    (LinearTable(), LogisticTable(), CoxTable(), PoissonTable(), MeanTable()), MODELS.names
)
"""One for each model that a study may name."""
