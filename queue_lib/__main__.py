"""``python -m queue_lib``: see `queue_lib.cli`."""

from __future__ import annotations

import sys

from queue_lib.cli import main

if __name__ == "__main__":
    sys.exit(main())
