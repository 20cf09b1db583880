//! In which order are free blocks reused: a doubly linked list over block numbers, every step of it O(1).
//!
//! A block that is hit leaves the list from its middle, which is why it is linked.

/// A block's number in its pool.
pub(super) type BlockId = usize;

/// Numbers of half the size: the lists of a simulated fleet fit no cache.
#[derive(Clone, Copy)]
struct Link {
    before: u32,
    after: u32,
}

/// The free blocks, the next one to be reused in front. Each block is in it once or not at all;
/// the pool knows which, the list does not check.
pub(super) struct FreeList {
    /// One link a block, and a last one that closes the ring and is neither block.
    links: Vec<Link>,
    len: usize,
}

#[expect(
    clippy::indexing_slicing,
    reason = "the pool hands in only numbers of its own blocks, and each of them has a link"
)]
impl FreeList {
    /// All blocks free, in the order of their numbers.
    pub(super) fn full(blocks: usize) -> Self {
        let ring = blocks + 1;
        let links = (0..ring)
            .map(|id| Link {
                before: short((id + ring - 1) % ring),
                after: short((id + 1) % ring),
            })
            .collect();
        Self { links, len: blocks }
    }

    /// How many blocks are free.
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    /// Takes the block that was to be reused first.
    pub(super) fn pop_front(&mut self) -> Option<BlockId> {
        if self.len == 0 {
            return None;
        }
        let first = self.links[self.ring_end()].after as BlockId;
        self.remove(first);
        Some(first)
    }

    /// The blocks that are to be reused next, in order.
    pub(super) fn first(&self, blocks: usize) -> impl Iterator<Item = BlockId> {
        let end = self.ring_end();
        let links = &self.links;
        let next = move |&id: &BlockId| Some(links[id].after as BlockId).filter(|&id| id != end);
        std::iter::successors(next(&end), next).take(blocks)
    }

    /// Takes a block out of the middle.
    pub(super) fn remove(&mut self, id: BlockId) {
        let Link { before, after } = self.links[id];
        self.links[before as BlockId].after = after;
        self.links[after as BlockId].before = before;
        self.len -= 1;
    }

    /// Puts a block where it is reused last.
    pub(super) fn push_back(&mut self, id: BlockId) {
        self.insert_after(self.links[self.ring_end()].before as BlockId, id);
    }

    /// Puts a block where it is reused first.
    pub(super) fn push_front(&mut self, id: BlockId) {
        self.insert_after(self.ring_end(), id);
    }

    fn insert_after(&mut self, before: BlockId, id: BlockId) {
        let after = self.links[before].after;
        self.links[id] = Link {
            before: short(before),
            after,
        };
        self.links[before].after = short(id);
        self.links[after as BlockId].before = short(id);
        self.len += 1;
    }

    fn ring_end(&self) -> BlockId {
        self.links.len() - 1
    }
}

/// No pool has four billion blocks: they would fit no memory.
fn short(id: BlockId) -> u32 {
    u32::try_from(id).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(mut list: FreeList) -> Vec<BlockId> {
        std::iter::from_fn(|| list.pop_front()).collect()
    }

    #[test]
    fn blocks_come_out_in_order_and_a_removed_one_does_not() {
        let mut list = FreeList::full(5);
        list.remove(2);
        assert_eq!(list.len(), 4);
        list.push_back(2);
        list.remove(0);
        list.push_front(0);
        list.remove(4);
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
}
