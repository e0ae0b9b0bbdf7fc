"""The collector: from journals to ClickHouse."""
