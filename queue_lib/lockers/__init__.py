"""Lockers that several processes share: each keeps leases in a place that all of them reach.

`queue_lib.lockers.sql.SQLLocker` in PostgreSQL or SQLite, `queue_lib.lockers.redis.RedisLocker`
in Redis or Valkey, `queue_lib.lockers.keeper_map.KeeperMapLocker` in ClickHouse with a Keeper.
All of them are `queue_lib.lockers.lease.LeaseLocker`, on `Leases` of their own.
"""
