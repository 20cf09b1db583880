//! How fast is the index, beside the published one, and how fast is a pick?
//!
//! `cargo bench --bench index`. Both indexes get the same events and the same
//! lookups, in turns, and the medians of the rounds are shown: on a shared machine
//! one run says little. Without `--bench` (as `cargo test` calls it) it only checks
//! that both answer alike.

#![expect(clippy::print_stdout, reason = "a benchmark prints its figures")]
#![expect(
    clippy::unwrap_used,
    reason = "a benchmark that cannot run has nothing else to say"
)]
#![expect(
    clippy::indexing_slicing,
    reason = "all lists are made here with these lengths"
)]
#![expect(clippy::cast_possible_truncation, reason = "all numbers are small")]
#![expect(clippy::cast_sign_loss, reason = "all numbers are positive")]

use std::collections::{BTreeMap, VecDeque};
use std::hint::black_box;
use std::time::{Duration, Instant};

use kv_index::{ChainBlockMap, ChainIndex, ContentHash, SequenceHash, StoredBlock};
use rustc_hash::FxHashMap;
use warmpath::routing::block::{BlockKey, BlockSize, Scope, Sequence, prompt_keys};
use warmpath::routing::cache::FeedState;
use warmpath::routing::cost::Tiers;
use warmpath::routing::endpoint::{Endpoint, EndpointName, ReportOutcome};
use warmpath::routing::event::{EngineHash, KvEvent, Medium, Removed, Stored};
use warmpath::routing::index::{PrefixIndex, SourceId};
use warmpath::routing::router::{Ask, Policy, Prepared, Router, Settings, SubsetEntry};

const BLOCK: usize = 16;
const BLOCKS_AN_EVENT: usize = 8;

fn main() {
    let full = std::env::args().any(|argument| argument == "--bench");
    let (rounds, events, prompts) = if full { (7, 200_000, 200) } else { (1, 500, 8) };
    write(rounds, events, events / 4);
    look_up(rounds, 256, prompts);
    for endpoints in [10, 100, 256] {
        pick(endpoints, if full { 2_000 } else { 10 });
    }
}

fn another(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn tokens(state: &mut u64, blocks: usize) -> Vec<u32> {
    (0..blocks * BLOCK)
        .map(|_| another(state) as u32 % 150_000)
        .collect()
}

/// Time this thread was on a processor, where the kernel tells; other processes'
/// turns do not count. Wall-clock time elsewhere.
struct Stopwatch {
    wall: Instant,
    on_cpu: Option<u64>,
}

impl Stopwatch {
    fn start() -> Self {
        Self {
            on_cpu: on_cpu_ns(),
            wall: Instant::now(),
        }
    }

    fn elapsed(&self) -> Duration {
        let wall = self.wall.elapsed();
        match (self.on_cpu, on_cpu_ns()) {
            (Some(before), Some(after)) => Duration::from_nanos(after - before),
            _ => wall,
        }
    }
}

fn on_cpu_ns() -> Option<u64> {
    // Giving the processor away brings the kernel's count up to date.
    std::thread::yield_now();
    let schedstat = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    schedstat.split(' ').next()?.parse().ok()
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_unstable_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

/// One engine's events: chains of eight stores, each of eight blocks; once the cache
/// is full every store comes with the removal of the oldest chain's last blocks.
struct Event {
    removed: Vec<u64>,
    parent: Option<u64>,
    hashes: Vec<u64>,
    tokens: Vec<u32>,
    keys: Vec<BlockKey>,
    contents: Vec<u64>,
}

fn events(n: usize, capacity_events: usize) -> Vec<Event> {
    let mut state = 1;
    let mut events: Vec<Event> = Vec::with_capacity(n);
    let mut kept: VecDeque<Vec<u64>> = VecDeque::new();
    while events.len() < n {
        let prompt = tokens(&mut state, 8 * BLOCKS_AN_EVENT);
        let keys = prompt_keys(&prompt, BlockSize::DEFAULT, &Scope::default());
        let hashes: Vec<u64> = keys.iter().map(|_| another(&mut state)).collect();
        for start in (0..hashes.len()).step_by(BLOCKS_AN_EVENT) {
            let range = start..start + BLOCKS_AN_EVENT;
            let tokens = prompt[start * BLOCK..range.end * BLOCK].to_vec();
            let full = kept.len() * 8 >= capacity_events;
            let removed = if full {
                take_tail(&mut kept)
            } else {
                Vec::new()
            };
            events.push(Event {
                removed,
                parent: start.checked_sub(1).map(|before| hashes[before]),
                contents: tokens
                    .chunks(BLOCK)
                    .map(|block| kv_index::compute_content_hash(block).0)
                    .collect(),
                hashes: hashes[range.clone()].to_vec(),
                keys: keys[range].to_vec(),
                tokens,
            });
        }
        kept.push_back(hashes);
    }
    events
}

fn take_tail(kept: &mut VecDeque<Vec<u64>>) -> Vec<u64> {
    let Some(oldest) = kept.front_mut() else {
        return Vec::new();
    };
    let tail = oldest.split_off(oldest.len() - BLOCKS_AN_EVENT);
    if oldest.is_empty() {
        kept.pop_front();
    }
    tail
}

/// Block operations a second, in millions.
fn rate(events: &[Event], took: Duration) -> f64 {
    let blocks: usize = events
        .iter()
        .map(|e| e.hashes.len() + e.removed.len())
        .sum();
    blocks as f64 / took.as_secs_f64() / 1e6
}

fn write(rounds: usize, n: usize, capacity_events: usize) {
    let events = events(n, capacity_events);
    let engine_events = engine_events(&events);
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        rates[0].push(rate(&events, write_theirs(&events, false)));
        rates[1].push(rate(&events, write_ours(&events)));
        rates[2].push(rate(&events, write_theirs(&events, true)));
        rates[3].push(rate(&events, write_view(&engine_events)));
    }
    let [theirs, ours, theirs_hashed, view] = rates.map(median);
    println!("one writer, 8 blocks an event, {n} events, millions of block operations a second");
    println!("  blocks already hashed: kv-index {theirs:.1}, ours {ours:.1}");
    println!("  from token ids:        kv-index {theirs_hashed:.1}, ours (CacheView) {view:.1}");
}

fn write_theirs(events: &[Event], hash: bool) -> Duration {
    let index = ChainIndex::with_max_workers(256);
    let worker = index.intern_worker("engine").unwrap();
    let mut map = ChainBlockMap::new();
    let start = Stopwatch::start();
    for event in events {
        if !event.removed.is_empty() {
            let hashes: Vec<SequenceHash> =
                event.removed.iter().map(|&h| SequenceHash(h)).collect();
            index.apply_removed(worker, &hashes, &mut map);
        }
        let content = |i: usize| {
            if hash {
                kv_index::compute_content_hash(&event.tokens[i * BLOCK..(i + 1) * BLOCK])
            } else {
                ContentHash(event.contents[i])
            }
        };
        let blocks: Vec<StoredBlock> = (0..event.hashes.len())
            .map(|i| StoredBlock {
                seq_hash: SequenceHash(event.hashes[i]),
                content_hash: content(i),
            })
            .collect();
        let parent = event.parent.map(SequenceHash);
        index
            .apply_stored(worker, &blocks, parent, &mut map)
            .unwrap();
    }
    start.elapsed()
}

fn write_ours(events: &[Event]) -> Duration {
    let index = PrefixIndex::new();
    // As wide as a pool of 256.
    let ids: Vec<SourceId> = (0..256).map(|_| index.open()).collect();
    let id = ids[255];
    let mut map: FxHashMap<u64, BlockKey> = FxHashMap::default();
    let start = Stopwatch::start();
    for event in events {
        let gone: Vec<BlockKey> = event.removed.iter().filter_map(|h| map.remove(h)).collect();
        map.extend(event.hashes.iter().copied().zip(event.keys.iter().copied()));
        let mut writer = index.write(id).unwrap();
        writer.touch(&gone);
        writer.touch(&event.keys);
        for key in gone {
            writer.remove(key);
        }
        for &key in &event.keys {
            writer.store(key);
        }
    }
    start.elapsed()
}

fn engine_events(events: &[Event]) -> Vec<Vec<KvEvent>> {
    let hashes = |hashes: &[u64]| hashes.iter().map(|&hash| EngineHash(hash)).collect();
    events
        .iter()
        .map(|event| {
            let removed = KvEvent::Removed(Removed {
                hashes: hashes(&event.removed),
                medium: Medium::Gpu,
                group: None,
            });
            let stored = KvEvent::Stored(Stored {
                hashes: hashes(&event.hashes),
                parent: event.parent.map(EngineHash),
                tokens: event.tokens.clone(),
                opaque_tokens: false,
                block_size: BLOCK as u32,
                lora_name: None,
                extras: Vec::new(),
                medium: Medium::Gpu,
                group: None,
                indexable_group: true,
            });
            vec![removed, stored]
        })
        .collect()
}

fn write_view(batches: &[Vec<KvEvent>]) -> Duration {
    let router = router();
    let id = router.join(endpoint(0));
    let mut view = router.cache_view(id, 0);
    let start = Stopwatch::start();
    for batch in batches {
        black_box(view.apply(batch));
    }
    start.elapsed()
}

fn look_up(rounds: usize, endpoints: usize, n_prompts: usize) {
    let mut state = 2;
    let index = PrefixIndex::new();
    let theirs = ChainIndex::with_max_workers(endpoints);
    let prompts: Vec<Vec<u32>> = (0..n_prompts).map(|_| tokens(&mut state, 500)).collect();
    let keys: Vec<Vec<BlockKey>> = prompts
        .iter()
        .map(|prompt| prompt_keys(prompt, BlockSize::DEFAULT, &Scope::default()))
        .collect();
    let contents: Vec<Vec<ContentHash>> = prompts
        .iter()
        .map(|prompt| kv_index::compute_request_content_hashes(prompt, BLOCK))
        .collect();
    for n in 0..endpoints {
        let id = index.open();
        let worker = theirs.intern_worker(&format!("engine-{n}")).unwrap();
        let mut map = ChainBlockMap::new();
        for (keys, contents) in keys.iter().zip(&contents) {
            // One in ten is held whole or in part by each endpoint.
            if another(&mut state).is_multiple_of(10) {
                let held = 1 + another(&mut state) as usize % 500;
                let mut writer = index.write(id).unwrap();
                for &key in &keys[..held] {
                    writer.store(key);
                }
                let blocks: Vec<StoredBlock> = (0..held)
                    .map(|i| StoredBlock {
                        seq_hash: SequenceHash(keys[i].0),
                        content_hash: contents[i],
                    })
                    .collect();
                theirs
                    .apply_stored(worker, &blocks, None, &mut map)
                    .unwrap();
            }
        }
    }
    for round in 0..2 {
        let start = Stopwatch::start();
        for _ in 0..20 {
            for i in 0..n_prompts {
                if round == 0 {
                    black_box(index.lookup(&keys[i]));
                } else {
                    black_box(theirs.find_matches(&contents[i], false));
                }
            }
        }
        let mean = start.elapsed().as_nanos() as f64 / 1e3 / (20 * n_prompts) as f64;
        println!(
            "  mean on the processor of {}: {mean:.1}",
            ["ours", "kv-index"][round]
        );
    }
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..rounds * 50 {
        for i in 0..n_prompts {
            let i = (i * 37 + round) % n_prompts;
            let start = Instant::now();
            let mine = black_box(index.lookup(&keys[i]));
            times[0].push(start.elapsed().as_nanos() as f64 / 1e3);
            let start = Instant::now();
            let other = black_box(theirs.find_matches(&contents[i], false));
            times[1].push(start.elapsed().as_nanos() as f64 / 1e3);
            let alike: FxHashMap<u32, u32> =
                mine.iter().map(|m| (m.source.slot, m.blocks)).collect();
            assert_eq!(alike, other.scores, "the two indexes must answer alike");
        }
    }
    println!(
        "lookup of 500 blocks at {endpoints} endpoints, {} distinct blocks, µs",
        index.len()
    );
    for (name, times) in ["ours", "kv-index"].iter().zip(&mut times) {
        times.sort_unstable_by(f64::total_cmp);
        let at = |share: f64| times[(times.len() as f64 * share) as usize];
        println!("  {name}: p50 {:.1}, p99 {:.1}", at(0.5), at(0.99));
    }
}

fn router() -> std::sync::Arc<Router> {
    Router::new(Settings {
        policy: Policy::LeastPrefill,
        kv_usage_limit: 0.95,
        report_age_limit: Duration::from_millis(500),
        idle_report_age_limit: Duration::from_secs(6),
        tiers: Tiers::default(),
    })
}

fn endpoint(n: u16) -> Endpoint {
    Endpoint {
        name: EndpointName::new("pool", &format!("engine-{n}")),
        address: ([10, 0, (n >> 8) as u8, n as u8], 8000).into(),
        labels: BTreeMap::new(),
        incarnation: String::new(),
        rank: None,
    }
}

/// Picks for 8,000-token prompts of which 6,000 tokens are cached on every third endpoint,
/// 64 requests always in flight; the whole of pick and end is timed.
fn pick(endpoints: u16, picks: usize) {
    let router = router();
    let now = Instant::now();
    let mut state = 3;
    let shared = tokens(&mut state, 375);
    let keep: Vec<_> = (0..endpoints)
        .map(|n| {
            let id = router.join(endpoint(n));
            router.set_ready(id, true);
            router.report(id, ReportOutcome::NoPage, now);
            let mut view = router.cache_view(id, 0);
            view.set_feed(FeedState::Live);
            if n % 3 == 0 {
                view.apply(&[KvEvent::Stored(Stored {
                    hashes: (0..375).map(EngineHash).collect(),
                    parent: None,
                    tokens: shared.clone(),
                    opaque_tokens: false,
                    block_size: BLOCK as u32,
                    lora_name: None,
                    extras: Vec::new(),
                    medium: Medium::Gpu,
                    group: None,
                    indexable_group: true,
                })]);
            }
            view
        })
        .collect();
    let mut prepare = || {
        let prompt = [shared.clone(), tokens(&mut state, 125)].concat();
        router.prepare(&[Sequence::Tokens(prompt)], &Scope::default())
    };
    let prepared: Vec<Prepared> = (0..picks).map(|_| prepare()).collect();
    let mut flying = VecDeque::new();
    let mut times = Vec::with_capacity(picks);
    for (chance, prepared) in (0..).zip(&prepared) {
        let ask = Ask {
            subset: None::<&[SubsetEntry]>,
            alternates: 0,
            now,
            chance,
        };
        let start = Instant::now();
        flying.push_back(router.pick(prepared, &ask).unwrap());
        let ended = if flying.len() > 64 {
            flying.pop_front()
        } else {
            None
        };
        drop(ended);
        times.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    times.sort_unstable_by(f64::total_cmp);
    let (p50, p99) = (times[picks / 2], times[picks * 99 / 100]);
    println!(
        "pick and end at {} endpoints: p50 {p50:.1} µs, p99 {p99:.1} µs",
        keep.len()
    );
}
