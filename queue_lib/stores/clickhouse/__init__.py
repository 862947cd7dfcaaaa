"""The store on ClickHouse, under locks that all instances share."""
