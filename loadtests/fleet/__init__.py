"""A fleet of simulated engines behind the real router: which policy gives the shortest time to first token.

Deterministic for a seed, no clock and no sockets. `kvgateway replay TRACE --policy a,b` or
`python -m loadtests.fleet`; `docs/benchmarks.md` says what is modelled and what is not.
"""
