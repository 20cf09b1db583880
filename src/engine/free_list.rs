//! In which order are free blocks reused: a queue of block numbers, every step of it O(1).
//!
//! A block that is hit leaves the queue from its middle: its place stays, void, until the front comes by or the queue is
//! mostly void. A list linked through the blocks has no void places, but each of its steps waits for the block before:
//! the next blocks to be reused cannot be loaded at once. With such a list and larger blocks `benches/simulate.rs` took 95 µs
//! a request instead of 89 (in turns, on a busy machine).

use std::collections::VecDeque;

/// A block's number in its pool.
pub(super) type BlockId = u32;

/// No block has this number: a pool of so many would fit no memory.
const VOID: BlockId = BlockId::MAX;

/// Where a free block stands in the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place(u32);

/// The free blocks, the next one to be reused in front. Each block is in it once or not at all; the pool knows which,
/// and where: the queue does not check.
pub(super) struct FreeList {
    order: VecDeque<BlockId>,
    /// The place of the first of them. Places are counted round.
    front: Place,
    /// Those that are no void.
    len: usize,
}

impl FreeList {
    /// All blocks free, in the order of their numbers.
    pub(super) fn full(blocks: BlockId) -> Self {
        Self {
            order: (0..blocks).collect(),
            front: Place(0),
            len: blocks as usize,
        }
    }

    /// Where each stands of those that are in it, in order; none of them void yet.
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        (0..self.order.len()).map(|at| self.place(at))
    }

    /// How many blocks are free.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Takes the block that was to be reused first.
    pub(super) fn pop_front(&mut self) -> Option<BlockId> {
        while let Some(id) = self.order.pop_front() {
            self.front = Place(self.front.0.wrapping_add(1));
            if id != VOID {
                self.len -= 1;
                return Some(id);
            }
        }
        None
    }

    /// The blocks that are to be reused next, in order.
    pub(super) fn first(&self, blocks: usize) -> impl Iterator<Item = BlockId> {
        let order = self.order.iter().copied();
        order.filter(|&id| id != VOID).take(blocks)
    }

    /// Takes a block out of the middle.
    pub(super) fn remove(&mut self, place: Place) {
        let at = place.0.wrapping_sub(self.front.0);
        if let Some(id) = self.order.get_mut(at as usize) {
            *id = VOID;
            self.len -= 1;
        }
    }

    /// Puts a block where it is reused last.
    pub(super) fn push_back(&mut self, id: BlockId) -> Place {
        let place = self.place(self.order.len());
        self.order.push_back(id);
        self.len += 1;
        place
    }

    /// Puts a block where it is reused first.
    pub(super) fn push_front(&mut self, id: BlockId) -> Place {
        self.front = Place(self.front.0.wrapping_sub(1));
        self.order.push_front(id);
        self.len += 1;
        self.front
    }

    /// More than half of it is void.
    pub(super) fn is_mostly_void(&self) -> bool {
        self.order.len() > 2 * self.len + 64
    }

    /// Drops what is void; tells every block's new place.
    pub(super) fn sweep(&mut self, mut moved: impl FnMut(BlockId, Place)) {
        self.order.retain(|&id| id != VOID);
        for (at, &id) in self.order.iter().enumerate() {
            moved(id, self.place(at));
        }
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "it is at most twice as long as the pool, whose blocks have numbers of 32 bits; places are counted round"
    )]
    const fn place(&self, at: usize) -> Place {
        Place(self.front.0.wrapping_add(at as u32))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn drain(mut list: FreeList) -> Vec<BlockId> {
        std::iter::from_fn(|| list.pop_front()).collect()
    }

    #[test]
    fn blocks_come_out_in_order_and_a_removed_one_does_not() {
        let mut list = FreeList::full(5);
        list.remove(Place(2));
        assert_eq!(list.len(), 4);
        list.push_back(2);
        list.remove(Place(0));
        list.push_front(0);
        list.remove(Place(4));
        assert_eq!(list.first(2).collect::<Vec<_>>(), [0, 1]);
        assert_eq!(drain(list), [0, 1, 3, 2]);
    }

    #[test]
    fn an_emptied_list_fills_again() {
        let mut list = FreeList::full(2);
        assert_eq!((list.pop_front(), list.pop_front()), (Some(0), Some(1)));
        assert_eq!(list.pop_front(), None);
        list.push_front(1);
        list.push_back(0);
        assert_eq!(drain(list), [1, 0]);
    }

    proptest! {
        #[test]
        fn it_is_in_the_order_of_a_plain_list_and_never_much_longer(
            steps in prop::collection::vec((0..3_u8, 0..40_u32), 1..2000),
        ) {
            const BLOCKS: u32 = 40;
            let mut list = FreeList::full(BLOCKS);
            let mut places: Vec<Place> = (0..BLOCKS).map(Place).collect();
            let mut twin: VecDeque<BlockId> = (0..BLOCKS).collect();
            for (step, id) in steps {
                match (step, twin.iter().position(|&other| other == id)) {
                    (0, _) => prop_assert_eq!(list.pop_front(), twin.pop_front()),
                    (_, Some(at)) => {
                        list.remove(places[id as usize]);
                        twin.remove(at);
                    }
                    (1, None) => {
                        places[id as usize] = list.push_front(id);
                        twin.push_front(id);
                    }
                    (_, None) => {
                        places[id as usize] = list.push_back(id);
                        twin.push_back(id);
                    }
                }
                if list.is_mostly_void() {
                    list.sweep(|id, place| places[id as usize] = place);
                }
                prop_assert_eq!(list.len(), twin.len());
                prop_assert!(list.order.len() <= 2 * twin.len() + 64);
                prop_assert_eq!(list.first(5).collect::<Vec<_>>(), twin.iter().copied().take(5).collect::<Vec<_>>());
            }
            prop_assert_eq!(drain(list), Vec::from(twin));
        }
    }
}
