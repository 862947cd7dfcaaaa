"""The engine: threads that claim, run, renew, settle and clean up, over any `Store`."""
