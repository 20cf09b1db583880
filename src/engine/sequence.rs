//! How far is one request: its tokens, the hashes of its blocks, the blocks it holds.

use std::time::Instant;

use xxhash_rust::xxh3::{Xxh3, xxh3_64_with_seed};

use super::free_list::BlockId;
use super::model::{Named, Request, RequestId};
use crate::routing::block::{BlockKey, BlockSize, Scope, block_key, root};
use crate::routing::event::{BlockExtra, EngineHash};

/// The hash before the first block. Equal in every engine, as vLLM's is since 0.29, and not
/// the seed of the picker's own keys, so that no test passes by comparing the two.
const ROOT: u64 = 0x5641_4c55_4520_3033;

/// A request between its submission and its end.
pub(super) struct Sequence {
    pub(super) id: RequestId,
    pub(super) request: Request,
    /// The prompt, then what was generated. Empty if only names are known.
    tokens: Vec<u32>,
    /// How many these are.
    pub(super) len: usize,
    pub(super) prompt_len: usize,
    /// Only the names of its blocks are known: all of them from the start.
    is_named: bool,
    /// One for each full block of `tokens`.
    pub(super) hashes: Vec<EngineHash>,
    /// The picker's names for the same blocks: nothing here is decided by them. Empty where the hashes are the names.
    keys: Vec<BlockKey>,
    /// The blocks it holds, in order; empty while it waits.
    pub(super) blocks: Vec<BlockId>,
    /// How many of them are full and announced (or were hit).
    pub(super) registered: usize,
    /// Tokens whose KV is computed, those of the step in flight included.
    pub(super) computed: usize,
    /// Tokens of the step in flight; zero if it is not part of it.
    pub(super) scheduled: usize,
    /// Cached tokens found when it was first scheduled.
    pub(super) cached: Option<usize>,
    /// Those of them that came from the lower tier.
    pub(super) loaded: usize,
    pub(super) arrived: Instant,
    pub(super) first_scheduled: Option<Instant>,
    /// The client left while a step was in flight.
    pub(super) aborted: bool,
    /// Stands for seed and prompt where tokens are generated.
    digest: u64,
}

impl Sequence {
    /// Hashes the prompt's blocks; they are not hashed again.
    pub(super) fn new(
        id: RequestId,
        mut request: Request,
        block_size: BlockSize,
        seed: u64,
        now: Instant,
    ) -> Self {
        let tokens = std::mem::take(&mut request.prompt);
        let prompt = tokens.len();
        let blocks = prompt / block_size.get() as usize + 1;
        let mut bytes = Vec::with_capacity(prompt * size_of::<u32>());
        for token in &tokens {
            bytes.extend_from_slice(&token.to_le_bytes());
        }
        let mut sequence = Self {
            tokens,
            hashes: Vec::with_capacity(blocks),
            keys: Vec::with_capacity(blocks),
            digest: xxh3_64_with_seed(&bytes, seed),
            ..Self::waiting(id, request, prompt, now)
        };
        sequence.hash_full_blocks(block_size);
        sequence
    }

    /// One of which only the names of its blocks are known; they are the engine's names as well.
    pub(super) fn named(id: RequestId, named: Named, now: Instant) -> Self {
        let request = Request {
            prompt: Vec::new(),
            scope: Scope::default(),
            max_tokens: Some(named.output),
            ignore_eos: true,
            reads_cache: true,
            answer: Vec::new(),
        };
        Self {
            is_named: true,
            // Where the keys lie: nothing is copied.
            hashes: named
                .keys
                .into_iter()
                .map(|key| EngineHash(key.0))
                .collect(),
            ..Self::waiting(id, request, named.prompt, now)
        }
    }

    /// One with a prompt of so many tokens, of which nothing is known or computed yet.
    fn waiting(id: RequestId, request: Request, prompt: usize, now: Instant) -> Self {
        Self {
            id,
            request,
            tokens: Vec::new(),
            len: prompt,
            prompt_len: prompt,
            is_named: false,
            hashes: Vec::new(),
            keys: Vec::new(),
            blocks: Vec::new(),
            registered: 0,
            computed: 0,
            scheduled: 0,
            cached: None,
            loaded: 0,
            arrived: now,
            first_scheduled: None,
            aborted: false,
            digest: 0,
        }
    }

    /// Where its next token changes nothing but the count of them, counts it. Not the first and the last one.
    pub(super) fn count_only(&mut self) -> bool {
        let generated = self.len - self.prompt_len;
        let is_between = generated > 0 && Some(generated + 1) != self.request.max_tokens;
        let counts = self.is_named && is_between;
        self.len += usize::from(counts);
        counts
    }

    /// The picker's name for its block `at`.
    pub(super) fn key(&self, at: usize) -> Option<BlockKey> {
        if self.is_named {
            self.hashes.get(at).map(|hash| BlockKey(hash.0))
        } else {
            self.keys.get(at).copied()
        }
    }

    /// Tokens known and not yet computed.
    pub(super) const fn uncomputed(&self) -> usize {
        self.len.saturating_sub(self.computed)
    }

    /// Generated so far.
    pub(super) const fn generated(&self) -> usize {
        self.len - self.prompt_len
    }

    /// Appends the next token: the given one if the request came with answers, else one chosen by
    /// seed, prompt and position alone. None where tokens are only counted.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "the remainder is below the number of choices, which is a usize"
    )]
    pub(super) fn generate(&mut self, choices: &[u32], block_size: BlockSize) -> Option<u32> {
        self.len += 1;
        if self.is_named {
            return None;
        }
        let position = self.generated() - 1;
        let token = self
            .request
            .answer
            .get(position)
            .copied()
            .or_else(|| {
                let mixed = xxh3_64_with_seed(&(position as u64).to_le_bytes(), self.digest);
                let index = mixed.checked_rem(choices.len() as u64)?;
                choices.get(index as usize).copied()
            })
            .unwrap_or_default();
        self.tokens.push(token);
        self.hash_full_blocks(block_size);
        Some(token)
    }

    /// The KV is lost: everything has to be computed (or hit) again.
    pub(super) fn restart(&mut self) -> Vec<BlockId> {
        self.computed = 0;
        self.scheduled = 0;
        self.registered = 0;
        std::mem::take(&mut self.blocks)
    }

    /// The tokens of some of its blocks.
    pub(super) fn block_tokens(&self, from: usize, to: usize, block_size: usize) -> Vec<u32> {
        self.tokens
            .get(from * block_size..to * block_size)
            .unwrap_or_default()
            .to_vec()
    }

    fn hash_full_blocks(&mut self, block_size: BlockSize) {
        let tokens_a_block = block_size.get() as usize;
        let done = self.hashes.len() * tokens_a_block;
        let scope = &self.request.scope;
        for block in (self.tokens.get(done..).unwrap_or_default()).chunks_exact(tokens_a_block) {
            let parent = self.hashes.last().copied();
            self.hashes.push(block_hash(parent, block, scope));
            let key = match self.keys.last() {
                Some(&parent) => block_key(parent, block, None),
                None => first_key(block_size, block, scope),
            };
            self.keys.push(key);
        }
    }
}

/// The picker's name of a sequence's first block.
fn first_key(block_size: BlockSize, tokens: &[u32], scope: &Scope) -> BlockKey {
    let extra = BlockExtra {
        salt: scope.salt.as_deref().map(str::to_owned),
        ..BlockExtra::default()
    };
    block_key(
        root(block_size, scope.adapter.as_deref()),
        tokens,
        Some(&extra),
    )
}

/// The name of a block: parent, tokens, adapter, and in the first block the salt.
fn block_hash(parent: Option<EngineHash>, tokens: &[u32], scope: &Scope) -> EngineHash {
    let mut hasher = Xxh3::with_seed(parent.map_or(ROOT, |parent| parent.0));
    for token in tokens {
        hasher.update(&token.to_le_bytes());
    }
    if let Some(adapter) = &scope.adapter {
        hasher.update(b"lora:");
        hasher.update(adapter.as_bytes());
    }
    if let (None, Some(salt)) = (parent, &scope.salt) {
        hasher.update(b"salt:");
        hasher.update(salt.as_bytes());
    }
    EngineHash(hasher.digest())
}
