"""Search: random draws, asynchronous halving, on a Ray cluster or stacked inside one device."""
