"""NIXL found and watched, and a probe that measures the ways between workers."""
