//! How many simulated requests a minute does one core do?
//!
//! `cargo bench --profile quick --bench simulate`. The reference load: 40 requests a second, prompts of 8,000 tokens of
//! which 6,000 are one of 200 prefixes, answers of 300 tokens; 20 replicas of Llama 3.3 70B on two H200 each, with 16
//! tokens a block, and the rule that serves. The run is one thread; what is measured is its processor time, so that a busy
//! machine counts less. `SIMULATE_BLOCK_SIZE` sets another block size, `SIMULATE_REQUESTS` sets how many (by default 50,000).
//!
//! Measured on one of two shared cores, both more than busy: 16 tokens a block 960,000 to 1,040,000 requests a minute (62.6
//! µs each, the median of five, and 57.4 in a quieter minute), 32 tokens a block 1,790,000 (33.5 µs). Much of it is waiting
//! for memory: 20 engines of 34,882 blocks and the index of them are some 75 MB by their layouts, and a request changes 290
//! places of each table. So names of neighbouring blocks are close to each other (`simulate::fleet::names`); with runs of 8
//! instead of 64 it took 80.6 and 70.2 µs in the same turns. Rows of 12 bytes in the index made it 61.5 µs, but a pick 1 to
//! 2 % slower (`benches/index.rs`); with them, loading the places of flying blocks ahead made it no faster. With token ids
//! and real events it was 357 µs.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench stops at the first thing that is wrong, and says what it measures"
)]

use std::time::Duration;

use warmpath::plan::Inputs;
use warmpath::routing::block::BlockSize;
use warmpath::simulate::fleet;
use warmpath::simulate::scenario::Scenario;
use warmpath::simulate::workload::{Generated, Loop, Spec};

const REPLICAS: usize = 20;

/// The command's.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// The load and the engines are those of `warmpath simulate` where nothing else is said.
fn reference(requests: u64, block_size: u32) -> Scenario {
    let size = BlockSize::new(block_size).unwrap();
    let engine = Inputs::preset("llama-3.3-70b-h200")
        .unwrap()
        .engine(size, 8_192, 256);
    Scenario {
        load: Spec::Generated(Generated {
            requests: Some(requests),
            ..Generated::default()
        }),
        kind: Loop::Open,
        fleet: fleet::Settings::new(REPLICAS, engine),
        seed: 1,
    }
}

/// Processor time of this process, as Linux accounts it.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

fn main() {
    let requests = std::env::var("SIMULATE_REQUESTS").map_or(50_000, |n| n.parse().unwrap());
    let block_size = std::env::var("SIMULATE_BLOCK_SIZE").map_or(16, |n| n.parse().unwrap());
    let scenario = reference(requests, block_size);
    let before = processor_time();
    let outcome = scenario
        .run("least-prefill", REPLICAS, &mut |_| {})
        .unwrap();
    let took = processor_time().saturating_sub(before).as_secs_f64();
    let each = took / requests as f64;
    println!(
        "{requests} requests in {took:.2} s of processor time: {:.1} µs each, {:.0} a minute",
        each * 1e6,
        60.0 / each
    );
    println!(
        "ttft p50 {:.3} s, p90 {:.3} s, p99 {:.3} s; tpot p50 {:.1} ms; cached {:.3}, foreseen {:.4}; imbalance {:.3}; \
         {:.0} virtual seconds",
        outcome.ttft.p50,
        outcome.ttft.p90,
        outcome.ttft.p99,
        outcome.tpot.p50 * 1e3,
        outcome.cached_share,
        outcome.foreseen_share,
        outcome.imbalance,
        outcome.seconds,
    );
}
