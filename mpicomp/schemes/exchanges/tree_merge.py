"""gTop-k: the lists of all ranks merged in a tree, the k largest sums kept at every merge."""

from __future__ import annotations

from ...errors import CorruptMessage
from ...types import Array
from ..interfaces import Exchange, StepContext
from ..values import Compensated, Exchanged, Mean
from ..wire import index_lists
from ..wire.index_lists import Ledger, Pairs


class Merge(Exchange[index_lists.Lists, index_lists.Lists]):
    """Merges the workers' lists two by two: values at equal indices add, the k largest of each span stay.

    Schedule: a binomial tree over any number of ranks: in round j a rank whose bit j is set sends its list to rank
    - 2^j and is done, the others merge what they receive. Rank 0's list is broadcast. Workers of one rank merge first.
    Cost: ceil(log2 p) rounds of k pairs, as many for the broadcast: O(k log p) on rank 0, 2 (p-1) k (v + i) bytes over
    all ranks, however much the lists differ. A list shorter than k is filled up.
    Restrictions: of the sum of all lists not always the k largest: an index may be cut in one branch. An element sent
    but absent from the final list stays in its sender's memory; one cut in one branch, but present through another,
    stays in the memory of the rank that cut it.
    Reference: Shi et al., A distributed synchronous SGD algorithm with global top-k sparsification, ICDCS 2019.
    """

    name = "merge"
    options = ()
    reference = "Shi et al. 2019 (gTop-k)"
    takes = "counted"
    codecs = "float"

    def choose(self, us: list[Compensated], ctx: StepContext) -> index_lists.Lists:
        return index_lists.choose(us, ctx)

    def encode(self, us: list[Compensated], choice: index_lists.Lists, ctx: StepContext) -> index_lists.Lists:
        return choice.rounded(ctx)

    def combine(self, message: index_lists.Lists, ctx: StepContext) -> Exchanged:
        counts, ledger = ctx.selector.counts(ctx), Ledger(message.own)
        mine = index_lists.merged(message.own, counts, ledger, ctx)
        mine, packed, damage = _up_the_tree(mine, counts, ledger, ctx)
        ctx.comm.broadcast(packed, 0)
        if damage is not None:
            raise damage
        final = mine if ctx.comm.rank == 0 else index_lists.read(packed, ctx, filled=True)
        sent = ledger.sent(final, ctx)
        # Scaled in place: if the final list is a worker's own choice, no other worker sent any, and the factor is 1.
        return Exchanged(Mean(final.indices, ctx.scale(final.values), ctx.n), sent, message.bits(ctx))


def _up_the_tree(mine: Pairs, counts: list[int], ledger: Ledger, ctx: StepContext
                 ) -> tuple[Pairs, Array, CorruptMessage | None]:
    """This rank's list, on rank 0 the final one, and as a message; elsewhere that is room for the final one.

    A rank that cannot read a list passes on one that no rank can read, and rank 0 sends such a list to all: no rank
    waits for a message that never comes.
    """
    rank, size, length, bit = ctx.comm.rank, ctx.comm.size, sum(counts), 1
    nbytes, damage = length * index_lists.pair_bytes(ctx), None
    while bit < size and not rank & bit:
        if rank + bit < size:
            received = ctx.comm.send_and_receive({}, {rank + bit: nbytes}, like=mine.values)
            try:
                theirs = index_lists.read(received[rank + bit], ctx, check=False)
                mine = index_lists.merged([mine, theirs], counts, ledger, ctx, filled=True)
            except CorruptMessage as error:
                damage = error
        bit <<= 1
    message = index_lists.write(mine, ctx, length) if damage is None else index_lists.unreadable(nbytes, ctx)
    if rank:
        ctx.comm.send_and_receive({rank - bit: message}, {}, like=mine.values)
    return mine, message, damage
