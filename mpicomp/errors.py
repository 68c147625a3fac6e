"""The errors this library raises on purpose, so that callers can tell them from bugs."""


class MpicompError(Exception):
    """Base of every error raised on purpose."""


class InvalidArgument(MpicompError, ValueError):
    """An argument is out of range or of the wrong kind; the text says what was expected and what was got."""


class BufferRefused(MpicompError, ValueError):
    """A buffer cannot be used as given (strided, read-only, foreign byte order, overlapping)."""


class Disagreement(MpicompError, RuntimeError):
    """Ranks called a collective with different arguments; raised on every rank, naming both sides."""


SKIPPING = "nonfinite='skip' leaves out such steps on all ranks"  # advice of errors about NaN in gradients


class NonFiniteGradient(MpicompError, FloatingPointError):
    """A gradient holds NaN or infinity; raised on every rank, naming rank and array."""


class MissingExtra(MpicompError, ImportError):
    """An optional dependency is needed; the text gives the command that installs it."""


class CorruptFile(MpicompError, ValueError):
    """A file does not hold what its format promises."""


class CorruptMessage(MpicompError, ValueError):
    """A message of another rank does not hold what its form promises; nothing was read or written by it."""


class RefusedOverwrite(MpicompError, FileExistsError):
    """An output file exists already and ``force`` was not given."""


class RankLeft(MpicompError, RuntimeError):
    """A rank left a collective in the middle, by an exception; its communicator cannot go on."""


class SchemeWarning(UserWarning):
    """An allowed choice has an effect that few users want; the text names the effect and its cause."""


class InjectedFault(MpicompError, RuntimeError):
    """Raised because ``MPICOMP_FAULT`` asked for it."""


# Raised by h5py and json for damaged or hostile files; a reader raises CorruptFile in their place.
DAMAGE = (OSError, RuntimeError, KeyError, TypeError, ValueError, AttributeError, OverflowError, MemoryError)
