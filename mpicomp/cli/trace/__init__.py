"""The command ``mpicomp trace``: each module is imported when it is used."""
