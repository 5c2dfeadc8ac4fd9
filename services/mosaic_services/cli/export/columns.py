"""The columns of exported Parquet files. docs/cli.md describes them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from mosaic_services.comparison.folding import parameters

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mosaic_bus.messages import RunSpec, RunState, RunSummary

__all__ = ["EPISODES", "EVENTS", "LOGS", "SCALARS", "runs_table", "table_of"]


def _schema(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    return pa.schema(list(columns))


EVENTS = _schema(
    ("attempt", pa.int32()),
    ("number", pa.int64()),
    ("event", pa.string()),
    ("ts", pa.float64()),
    ("step", pa.int64()),
    ("value", pa.float64()),
    ("line", pa.string()),
)
EPISODES = _schema(
    ("attempt", pa.int32()),
    ("number", pa.int64()),
    ("step", pa.int64()),
    ("ts", pa.float64()),
    ("episode", pa.int64()),
    ("return", pa.float64()),
    ("length", pa.int64()),
    ("seed", pa.int64()),
    ("agent", pa.string()),
)
SCALARS = _schema(
    ("attempt", pa.int32()),
    ("number", pa.int64()),
    ("step", pa.int64()),
    ("name", pa.string()),
    ("value", pa.float64()),
    ("ts", pa.float64()),
    ("agent", pa.string()),
)
LOGS = _schema(("attempt", pa.int32()), ("number", pa.int64()), ("line", pa.string()))


def table_of(rows: list[dict[str, Any]], schema: pa.Schema) -> pa.Table:
    """Make a table of rows; a value that does not fit its column, such as a seed of 2**63, becomes null."""
    try:
        return pa.Table.from_pylist(rows, schema=schema)
    except (OverflowError, pa.ArrowException):
        fitting = [{each.name: _fitting(row.get(each.name), each.type) for each in schema} for row in rows]
        return pa.Table.from_pylist(fitting, schema=schema)


def _fitting(value: object, kind: pa.DataType) -> object:
    try:
        if isinstance(value, int) and kind == pa.float64():  # Arrow accepts none above 2**53
            value = float(value)
        pa.scalar(value, kind)
    except (OverflowError, pa.ArrowException):
        return None
    return value


def runs_table(states: list[RunState], specs: Mapping[str, RunSpec], summaries: Mapping[str, RunSummary]) -> pa.Table:
    """One row per run: what it is, each parameter that varies within the group, and what it brought."""
    varying = parameters(specs)
    paths = list({path: None for values in varying.values() for path in values})
    rows = []
    for state in states:
        summary = summaries.get(state.run)
        values = {path: varying[state.run].get(path) for path in paths}
        plain = {key: json.dumps(value) if isinstance(value, dict | list) else value for key, value in values.items()}
        about = {"run": state.run, "name": state.name, "state": str(state.state)}
        rows.append(
            {
                **about,
                **plain,
                "steps": summary.step if summary else None,
                "episodes": summary.episodes if summary else None,
                "return_mean": summary.return_mean if summary else None,
            }
        )
    return pa.Table.from_pylist(rows)
