"""The door to mpi4py: `comm.Comm`, what its calls are made of, and how ranks agree, start and fail together."""
