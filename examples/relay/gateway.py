"""The gateway of an evaluation: python gateway.py http://localhost:8000 out/ 3"""

import sys
from collections.abc import Iterator
from pathlib import Path

from callboard import relay


class Days(relay.Gateway):
    columns = {"score": float}

    def __init__(self, url: str, days: int) -> None:
        super().__init__(url, start_up_wait="60s", deadline="10s")
        self.days = days

    def batches(self) -> Iterator[relay.Batch]:
        for day in range(self.days):
            yield relay.Batch([0.5, 1.5], day=day, ids=[f"{day}-a", f"{day}-b"])
            # The reply has been accepted.
            print(f"day {day} is done", flush=True)

    def check(self, batch: relay.Batch, rows: relay.Rows) -> None:
        if min(rows["score"]) < 0:
            raise relay.InvalidReply(f"day {batch.kwargs['day']}: a score is negative")


if __name__ == "__main__":
    url, directory, days = sys.argv[1:]
    result = Days(url, int(days)).run(Path(directory))
    if not result.succeeded:
        sys.exit(f"{result.blame}: {result.error}: {result.message}")
    print(f"{result.rows} rows are in {directory}/submission.csv")
