//! The view and its index against two others over the same histories: the published reference
//! index, in which a tier is one more worker, and sets as plain as can be.

use std::collections::BTreeMap;

use kv_index::{ContentHash, ReferenceIndexer, SequenceHash, StoredBlock};

use super::*;

/// A chain of blocks, each of one of a few contents.
type Chain = Vec<u8>;

const RANKS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    /// The engine computes a prompt: whatever of it is not there is stored, in events of so many blocks.
    Compute(u32, Chain, usize),
    /// Some block is computed again beside its copy.
    Again(u32, usize),
    Remove(u32, usize),
    /// By hash alone, as offload connectors tell it, or with its content.
    Offload(u32, usize, bool),
    Unload(u32, usize),
    /// Back to the accelerator, by hash alone.
    Load(u32, usize),
    Clear(u32),
    /// The view is told to start over, as after a lost batch or a restart.
    StartOver(u32),
    /// Another view takes the rank's place.
    Replace(u32),
}

fn step() -> impl Strategy<Value = Step> {
    let rank = || 0..RANKS;
    let which = any::<usize>;
    let chain = prop::collection::vec(0_u8..3, 1..7);
    prop_oneof![
        8 => (rank(), chain, 1_usize..4).prop_map(|(r, c, n)| Step::Compute(r, c, n)),
        1 => (rank(), which()).prop_map(|(r, n)| Step::Again(r, n)),
        6 => (rank(), which()).prop_map(|(r, n)| Step::Remove(r, n)),
        6 => (rank(), which(), any::<bool>()).prop_map(|(r, n, full)| Step::Offload(r, n, full)),
        2 => (rank(), which()).prop_map(|(r, n)| Step::Unload(r, n)),
        2 => (rank(), which()).prop_map(|(r, n)| Step::Load(r, n)),
        1 => rank().prop_map(Step::Clear),
        1 => rank().prop_map(Step::StartOver),
        1 => rank().prop_map(Step::Replace),
    ]
}

fn tokens(chain: &[u8]) -> Vec<u32> {
    let block = |content: u8| (0..4).map(move |n| u32::from(content) * 100 + n);
    chain.iter().copied().flat_map(block).collect()
}

/// The engine's name for the last block of a chain: covers all of it, and is the same on all ranks.
fn hash(chain: &[u8]) -> EngineHash {
    let fold =
        |hash: u64, content: &u8| (hash ^ u64::from(content + 1)).wrapping_mul(0x100_0000_01b3);
    EngineHash(chain.iter().fold(0xcbf2_9ce4_8422_2325, fold))
}

/// Physical blocks by chain.
type Blocks = BTreeMap<Chain, u32>;

#[derive(Default)]
struct Engine {
    gpu: Blocks,
    cpu: Blocks,
}

fn nth(blocks: &Blocks, n: usize) -> Option<Chain> {
    let place = n.checked_rem(blocks.len())?;
    blocks.keys().nth(place).cloned()
}

struct World {
    fixture: Fixture,
    views: Vec<CacheView>,
    engines: Vec<Engine>,
    reference: ReferenceIndexer,
}

impl World {
    fn new() -> Self {
        let fixture = Fixture::new();
        let views = (0..RANKS)
            .map(|rank| fixture.router.cache_view(fixture.id, rank))
            .collect();
        Self {
            fixture,
            views,
            engines: (0..RANKS).map(|_| Engine::default()).collect(),
            reference: ReferenceIndexer::new(),
        }
    }

    fn tell(&mut self, rank: u32, event: KvEvent) {
        self.views[rank as usize].apply(&[event]);
    }

    /// Blocks `from..` of a chain, with their content.
    fn stored(chain: &[u8], from: usize, medium: Medium) -> KvEvent {
        KvEvent::Stored(Stored {
            hashes: (from..chain.len()).map(|n| hash(&chain[..=n])).collect(),
            parent: (from > 0).then(|| hash(&chain[..from])),
            tokens: tokens(&chain[from..]),
            medium,
            ..stored(0..1)
        })
    }

    fn moved(chain: &[u8], medium: Medium) -> KvEvent {
        KvEvent::Stored(Stored {
            hashes: vec![hash(chain)],
            tokens: Vec::new(),
            block_size: 0,
            medium,
            ..stored(0..1)
        })
    }

    /// Puts the last block of a chain into the reference, which places blocks only after their
    /// parents: they are put there too, and taken out again where the engine does not have them.
    fn refer(&mut self, worker: u32, chain: &[u8], held: &Blocks) {
        let blocks: Vec<StoredBlock> = (0..chain.len())
            .map(|n| StoredBlock {
                seq_hash: SequenceHash(hash(&chain[..=n]).0),
                content_hash: kv_index::compute_content_hash(&tokens(&chain[n..=n])),
            })
            .collect();
        self.reference.apply_stored(worker, &blocks, None).unwrap();
        let strangers: Vec<SequenceHash> = (1..chain.len())
            .filter(|&n| !held.contains_key(&chain[..n]))
            .map(|n| SequenceHash(hash(&chain[..n]).0))
            .collect();
        self.reference.apply_removed(worker, &strangers);
    }

    fn engine(&mut self, rank: u32) -> &mut Engine {
        &mut self.engines[rank as usize]
    }

    fn enter_gpu(&mut self, rank: u32, chain: &[u8]) {
        *self.engine(rank).gpu.entry(chain.to_vec()).or_insert(0) += 1;
        let held = self.engine(rank).gpu.clone();
        self.refer(rank, chain, &held);
    }

    fn leave(&mut self, rank: u32, medium: Medium, chain: &Chain) {
        let engine = self.engine(rank);
        let (blocks, worker) = match medium {
            Medium::Gpu => (&mut engine.gpu, rank),
            _ => (&mut engine.cpu, rank + RANKS),
        };
        let copies = blocks.get_mut(chain).unwrap();
        *copies -= 1;
        if *copies == 0 {
            blocks.remove(chain);
            let gone = [SequenceHash(hash(chain).0)];
            self.reference.apply_removed(worker, &gone);
        }
        let event = KvEvent::Removed(Removed {
            hashes: vec![hash(chain)],
            medium,
            group: None,
        });
        self.tell(rank, event);
    }

    fn forget(&mut self, rank: u32) {
        *self.engine(rank) = Engine::default();
        self.reference.apply_cleared(rank);
        self.reference.apply_cleared(rank + RANKS);
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Compute(rank, ref chain, at_once) => self.compute(rank, chain, at_once),
            Step::Again(rank, n) => {
                let Some(chain) = nth(&self.engine(rank).gpu, n) else {
                    return;
                };
                // A parent that is gone makes an orphan, which is another test's matter.
                let from = chain.len() - 1;
                if from > 0 && !self.engine(rank).gpu.contains_key(&chain[..from]) {
                    return;
                }
                self.enter_gpu(rank, &chain);
                self.tell(rank, Self::stored(&chain, from, Medium::Gpu));
            }
            Step::Remove(rank, n) => {
                if let Some(chain) = nth(&self.engine(rank).gpu, n) {
                    self.leave(rank, Medium::Gpu, &chain);
                }
            }
            Step::Offload(rank, n, full) => {
                let Some(chain) = nth(&self.engine(rank).gpu, n) else {
                    return;
                };
                let from = chain.len() - 1;
                let placed = from == 0 || self.engine(rank).gpu.contains_key(&chain[..from]);
                *self.engine(rank).cpu.entry(chain.clone()).or_insert(0) += 1;
                let held = self.engine(rank).cpu.clone();
                self.refer(rank + RANKS, &chain, &held);
                let event = if full && placed {
                    Self::stored(&chain, from, Medium::Cpu)
                } else {
                    Self::moved(&chain, Medium::Cpu)
                };
                self.tell(rank, event);
            }
            Step::Unload(rank, n) => {
                if let Some(chain) = nth(&self.engine(rank).cpu, n) {
                    self.leave(rank, Medium::Cpu, &chain);
                }
            }
            Step::Load(rank, n) => {
                let Some(chain) = nth(&self.engine(rank).cpu, n) else {
                    return;
                };
                self.enter_gpu(rank, &chain);
                self.tell(rank, Self::moved(&chain, Medium::Gpu));
            }
            Step::Clear(rank) => {
                self.forget(rank);
                self.tell(rank, KvEvent::Cleared);
            }
            Step::StartOver(rank) => {
                self.forget(rank);
                self.views[rank as usize].clear();
            }
            Step::Replace(rank) => {
                self.forget(rank);
                self.views[rank as usize] = self.fixture.router.cache_view(self.fixture.id, rank);
            }
        }
    }

    fn compute(&mut self, rank: u32, chain: &[u8], at_once: usize) {
        let mut done = 0;
        while done < chain.len() {
            if self.engine(rank).gpu.contains_key(&chain[..=done]) {
                done += 1;
                continue;
            }
            let missing = |n: &usize| !self.engines[rank as usize].gpu.contains_key(&chain[..=*n]);
            let run = (done..chain.len())
                .take_while(missing)
                .take(at_once)
                .count();
            for n in done..done + run {
                self.enter_gpu(rank, &chain[..=n]);
            }
            self.tell(rank, Self::stored(&chain[..done + run], done, Medium::Gpu));
            done += run;
        }
    }

    /// Both numbers of every rank that has any: by the index, by the sets, by the reference.
    fn compare(&self, prompt: &[u8]) {
        let keys = prompt_keys(
            &tokens(prompt),
            BlockSize::new(4).unwrap(),
            &Scope::default(),
        );
        let found = self.fixture.view.state.index.lookup(&keys);
        let contents: Vec<ContentHash> =
            kv_index::compute_request_content_hashes(&tokens(prompt), 4);
        let scores = self.reference.find_matches(&contents);
        let placed = self.reference.blocks();
        let prefixes = kv_index::request_prefix_hashes(&contents);
        for (rank, engine) in (0..).zip(&self.engines) {
            let source = self.views[rank as usize].feed.source;
            let ours = found.iter().find(|found| found.source == source);
            let ours = ours.map_or((0, 0), |found| (found.blocks, found.beneath));
            let run = |blocks: &Blocks, from: usize| {
                let has = |n: &usize| blocks.contains_key(&prompt[..=*n]);
                u32::try_from((from..prompt.len()).take_while(has).count()).unwrap()
            };
            let at_hand = run(&engine.gpu, 0);
            let plain = (at_hand, run(&engine.cpu, at_hand as usize));
            assert_eq!(
                ours, plain,
                "rank {rank}, {prompt:?}: ours and the plain sets"
            );
            let at_hand = scores.get(&rank).copied().unwrap_or(0);
            let beneath = (at_hand as usize..contents.len())
                .take_while(|&n| placed.contains(&(rank + RANKS, n, contents[n], prefixes[n])))
                .count();
            let reference = (at_hand, u32::try_from(beneath).unwrap());
            assert_eq!(
                ours, reference,
                "rank {rank}, {prompt:?}: ours and the reference"
            );
        }
    }
}

proptest! {
    #[test]
    fn agrees_with_the_published_reference_and_with_plain_sets(
        steps in prop::collection::vec(step(), 0..60),
        prompts in prop::collection::vec(prop::collection::vec(0_u8..3, 1..7), 4),
    ) {
        let mut world = World::new();
        for step in &steps {
            world.take(step);
            for prompt in &prompts {
                world.compare(prompt);
            }
            if let Step::Compute(_, chain, _) = step {
                world.compare(chain);
            }
        }
        for rank in 0..RANKS {
            world.views[rank as usize].clear();
        }
        prop_assert!(world.fixture.view.state.index.is_empty());
    }
}
