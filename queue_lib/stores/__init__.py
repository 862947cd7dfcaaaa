"""Stores: where messages and deliveries live. Import the SPI from `queue_lib.stores.base`."""
