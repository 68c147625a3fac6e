"""The command ``mpicomp bench``: each module is imported when it is used."""
