"""The store on ClickHouse, under locks that all instances share."""

from __future__ import annotations

from queue_lib.stores.clickhouse.open import open_clickhouse_store
from queue_lib.stores.clickhouse.store import ClickHouseStore

__all__ = ["ClickHouseStore", "open_clickhouse_store"]
