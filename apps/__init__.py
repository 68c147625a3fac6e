"""Training apps: complete uses of the public interface, installed as ``mpicomp.apps``."""
