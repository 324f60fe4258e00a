"""Prints the scenarios of the conformance suite with the result of each client: `table.py REPORT...`, named after the clients."""

import json
import sys
from pathlib import Path


def main():
    reports = {Path(path).stem: json.loads(Path(path).read_text(encoding="utf-8")) for path in sys.argv[1:]}
    results = {
        client: {each["name"]: each["passed"] for each in report["scenarios"]} for client, report in reports.items()
    }
    names = list(dict.fromkeys(name for rows in results.values() for name in rows))
    width = max(map(len, names))
    columns = {client: max(len(client), len("FAILED")) for client in reports}
    print(f"\n{'scenario':{width}}  " + "  ".join(f"{client:{columns[client]}}" for client in reports))
    for name in names:
        cells = ({True: "ok", False: "FAILED", None: "-"}[results[client].get(name)] for client in reports)
        print(f"{name:{width}}  " + "  ".join(f"{cell:{columns[client]}}" for cell, client in zip(cells, reports)).rstrip())
    # A scenario that was not played counts as failed.
    passed = sum(rows.get(name, False) for rows in results.values() for name in names)
    print(f"\n{passed} of {len(names) * len(reports)} passed")
    return passed != len(names) * len(reports)


if __name__ == "__main__":
    sys.exit(main())
