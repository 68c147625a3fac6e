"""The command ``mpicomp train``: each module is imported when it is used."""
