"""gTop-k: the lists of all ranks merged in a tree, the k largest sums kept at every merge."""

from __future__ import annotations

from typing import Any

from ...errors import CorruptMessage
from ...types import Array, Compensated, Exchanged, Mean, Sent
from ..wire import index_lists
from ..wire.index_lists import Ledger, Pairs
from ._stateless import Stateless


class Merge(Stateless):
    """Merges the workers' lists two by two: values at equal indices add, the k largest of each span stay.

    Schedule: a binomial tree over any number of ranks: in round j a rank whose bit j is set sends its list to rank
    - 2^j and is done, the others merge what they receive. Rank 0's list is broadcast. Workers of one rank merge first.
    Cost: ceil(log2 p) rounds of k pairs, as many for the broadcast: O(k log p) on rank 0, 2 (p-1) k (v + i) bytes over
    all ranks, however much the lists differ. A list shorter than k is filled up.
    Restrictions: of the sum of all lists not always the k largest: an index may be cut in one branch. What was sent
    but is not in the final list stays in its sender's memory; what was cut in one branch, but came through in another,
    in the memory of the rank that cut it.
    Reference: Shi et al., A distributed synchronous SGD algorithm with global top-k sparsification, ICDCS 2019.
    """

    name = "merge"
    options = ()
    reference = "Shi et al. 2019 (gTop-k)"
    takes = "counted"
    codecs = "float"
    early = False

    def select(self, workers: list[Compensated], step: Any) -> list[int]:
        self._own, found = index_lists.choose(workers, step)
        return found

    def compress(self, workers: list[Compensated], step: Any) -> list[Sent]:
        self._own = [index_lists.rounded(one, step) for one in self._own]
        return []

    def exchange(self, workers: list[Compensated], sent: list[Sent], step: Any) -> Exchanged:
        counts, ledger = step.selector.counts(step), Ledger(self._own)
        mine = index_lists.merged(self._own, counts, ledger, step)
        mine, message, damage = self._up_the_tree(mine, counts, ledger, step)
        step.comm.broadcast(message, 0)
        if damage is not None:
            raise damage
        final = mine if step.comm.rank == 0 else index_lists.read(message, step, filled=True)
        bits = 8.0 * index_lists.pair_bytes(step) * sum(one.size for one in self._own) / len(self._own)
        sent = ledger.sent(final.indices, step)
        # Scaled in place: where the final list is what a worker chose, nobody else sent anything, and the factor is 1.
        return Exchanged(Mean(final.indices, step.scale(final.values), step.n), sent, bits)

    def _up_the_tree(self, mine: Pairs, counts: list[int], ledger: Ledger, step: Any
                     ) -> tuple[Pairs, Array, CorruptMessage | None]:
        """This rank's list, on rank 0 the final one, and as a message; elsewhere that is room for the final one.

        A rank that cannot read a list sends one that nobody can read, and so does rank 0 to all: no rank waits in vain.
        """
        rank, size, length, bit = step.comm.rank, step.comm.size, sum(counts), 1
        nbytes, damage = length * index_lists.pair_bytes(step), None
        while bit < size and not rank & bit:
            if rank + bit < size:
                received = step.comm.send_and_receive({}, {rank + bit: nbytes}, like=mine.values)
                try:
                    theirs = index_lists.read(received[rank + bit], step, check=False)
                    mine = index_lists.merged([mine, theirs], counts, ledger, step, filled=True)
                except CorruptMessage as error:
                    damage = error
            bit <<= 1
        message = index_lists.write(mine, step, length) if damage is None else index_lists.unreadable(nbytes, step)
        if rank:
            step.comm.send_and_receive({rank - bit: message}, {}, like=mine.values)
        return mine, message, damage
