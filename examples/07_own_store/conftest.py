pytest_plugins = ["queue_lib.testing.plugin"]
