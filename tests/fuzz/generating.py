"""Settings of the tests whose inputs hypothesis makes up: no clocks on a busy machine, nothing kept on disk."""

from hypothesis import HealthCheck, settings


def tries(count: int) -> settings:
    return settings(max_examples=count, deadline=None, database=None, print_blob=True,
                    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])  # fmt: skip
