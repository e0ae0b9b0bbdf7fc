"""A real engine for the tables and views: embedded ClickHouse, one fresh database per test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import clickhouse_connect
import pytest
from clickhouse_connect.driver.client import Client
from engine import Engine

_numbers = count()


@pytest.fixture(name="client", scope="module")
def _client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """The engine; closed after each module, because only one folder can be open in a process."""
    path: Path = tmp_path_factory.mktemp("engine")
    client = clickhouse_connect.get_client(interface="chdb", path=str(path), tz_mode="schema")
    client.command("SET async_insert = 0")
    client.command("SYSTEM STOP MERGES")
    yield client
    client.close()


@pytest.fixture(name="empty")
def _empty(client: Client) -> Iterator[Engine]:
    """A database without tables. Its name differs from test to test: the SQL must not name one."""
    database = f"ledger_{next(_numbers)}"
    client.command(f"CREATE DATABASE {database}")
    client.command(f"USE {database}")
    yield Engine(client, database)
    client.command("USE default")
    client.command(f"DROP DATABASE {database}")


@pytest.fixture(name="migrated", scope="module")
def _migrated(client: Client) -> Engine:
    """One migrated database per module: making its tables and views takes longer than most tests."""
    client.command("CREATE DATABASE migrated")
    client.command("USE migrated")
    engine = Engine(client, "migrated")
    engine.migrate()
    return engine


@pytest.fixture(name="engine")
def _engine(migrated: Engine) -> Engine:
    """A migrated, empty ledger; nothing is merged in the background, so copies stay copies."""
    migrated.clear()
    return migrated
