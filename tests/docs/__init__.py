"""The blocks of README.md and docs/ are run, page by page."""
