"""`make example NAME=fulfilment`: the API with a worker beside it, until Ctrl-C, and what to try."""

from __future__ import annotations

import os
import sys

import uvicorn

from fulfilment_example.api import make_api
from fulfilment_example.shop import Shop

GREETING = """\
fulfilment is running on {url} (process {pid})

  curl {url}/orders -H 'content-type: application/json' -d '{{"amount": 42, "skus": ["tea", "rice"]}}'
  curl {url}/orders/1
  kill -9 {pid}          # and start it again: the order is where it was
  curl {url}/orders/1/approval -H 'content-type: application/json' -d '{{"by": "ana", "approved": true}}'

Ctrl-C stops it.
"""


def main() -> int:
    """Serves until SIGINT or SIGTERM; a run that is under way stops at its next step, and goes on at the next start."""
    shop = Shop(os.environ.get("DATABASE_URL") or "sqlite:///fulfilment.db")
    shop.prepare()
    port = int(os.environ.get("PORT") or "8330")
    sys.stdout.write(GREETING.format(url=f"http://127.0.0.1:{port}", pid=os.getpid()))
    sys.stdout.flush()
    uvicorn.run(make_api(shop), host="127.0.0.1", port=port, log_level="warning", access_log=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
