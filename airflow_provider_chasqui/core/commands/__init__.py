"""Every verb as a value: an Op for one round trip, a Flow for several. Grouped by noun."""
