"""An exchange of one's own, for tests to inherit from and to spoil."""

from typing import NamedTuple

from mpicomp.schemes.interfaces import Exchange
from mpicomp.schemes.values import Exchanged, Mean, Sent


class Chosen(NamedTuple):
    lists: list
    nonfinite: list


class Message(NamedTuple):
    sent: list


class Filled(Exchange):
    """The exchange of docs/quickstart/compressor.md."""

    name, reference, options = "mine", "a test", ()
    takes, codecs = "any", "float"

    def choose(self, us, ctx):
        return Chosen([ctx.select(u)[1] for u in us], [ctx.overflows(u) for u in us])

    def encode(self, us, choice, ctx):
        return Message([Sent(indices, u.at(indices, ctx.ops)) for indices, u in zip(choice.lists, us, strict=True)])

    def combine(self, message, ctx):
        total = ctx.ops.zeros(ctx.n, ctx.dtype)
        for one in message.sent:
            ctx.add_at(total, one.indices, one.values)
        ctx.comm.allreduce_in_place(total, ctx.algorithm)
        return Exchanged(Mean(None, self.scaled(total, ctx), ctx.n), message.sent, 8 * total.nbytes)

    def scaled(self, total, ctx):
        return ctx.scale(total)
