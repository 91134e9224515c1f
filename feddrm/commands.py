"""`feddrm`: what anybody may try without a federation."""

from __future__ import annotations

from feddrm.cli import make_app, run
from feddrm.compare.cli import compare
from feddrm.demo.cli import demo

app = make_app("feddrm", "FedDRM across hospitals: differential privacy, secure aggregation, and a private router.")
app.command()(demo)
app.command()(compare)


def main() -> None:
    """Entry point of `feddrm`."""
    run(app)


if __name__ == "__main__":
    main()
