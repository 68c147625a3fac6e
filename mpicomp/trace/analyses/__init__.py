"""Analyses of a trace, one file per topic. Every function takes a path (or an open ``Trace`` or ``Frame``).

It returns a dict of numbers, texts, None, and tables: dicts of equally long NumPy arrays, for
``pandas.DataFrame(result["table"])``. Times are nanoseconds, sizes bytes, bandwidths GB/s (1e9).
"""
