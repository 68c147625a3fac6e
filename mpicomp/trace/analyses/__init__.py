"""Questions to a trace, one file a theme. Every function takes a path (or an open ``Trace`` or ``Frame``); it returns a
dict.

Plain facts are numbers, texts or None; a table is a dict of equally long NumPy arrays, so that
``pandas.DataFrame(result["table"])`` is all it takes. Times are nanoseconds, sizes bytes, bandwidths GB/s (1e9).
"""
