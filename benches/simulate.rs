//! How many simulated requests a minute does one core do?
//!
//! `cargo bench --profile quick --bench simulate`. The reference load: 40 requests a second, prompts of 8,000 tokens of
//! which 6,000 are one of 200 prefixes, answers of 300 tokens; 20 replicas of Llama 3.3 70B on two H200 each, with 16
//! tokens a block, and the rule that serves. The run is one thread; what is measured is its processor time, so that a busy
//! machine counts less. `SIMULATE_BLOCK_SIZE` sets another block size, `SIMULATE_REQUESTS` sets how many (by default 50,000).
//!
//! Measured on one of two shared, busy cores with 60,000 requests: 16 tokens a block 640,000 to 700,000 requests a minute
//! (86 to 94 µs each; 876,000 in the best of all runs), 32 tokens a block 1,250,000 to 1,520,000. Nearly all
//! of it is waiting for memory: 20 engines of 34,882 blocks and the index of them are some 70 MB by their layouts, and a request changes 290
//! places of each table. With token ids and real events it was 357 µs.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench stops at the first thing that is wrong, and says what it measures"
)]

use std::sync::Arc;
use std::time::Duration;

use warmpath::engine::model;
use warmpath::routing::block::BlockSize;
use warmpath::routing::router::{Decision, Refusal};
use warmpath::simulate::fleet::{self, Settings};
use warmpath::simulate::policy::{Asked, Knowledge, Policy};
use warmpath::simulate::prompt::{Prompt, Segment};
use warmpath::simulate::workload::{Arrival, Workload};

/// What `serve` does.
struct LeastPrefill;

impl Policy for LeastPrefill {
    fn pick(&mut self, asked: &Asked<'_>, fleet: &dyn Knowledge) -> Result<Decision, Refusal> {
        fleet.pick(asked)
    }
}

/// The reference load.
struct Reference {
    rng: fastrand::Rng,
    at: Duration,
    made: u64,
    requests: u64,
}

impl Workload for Reference {
    fn next(&mut self) -> Option<Arrival> {
        if self.made == self.requests {
            return None;
        }
        self.made += 1;
        self.at += Duration::from_secs_f64(-(1.0 - self.rng.f64()).ln() / 40.0);
        let prefix = self.rng.u64(..200);
        let own = 1_000 + 2 * self.made;
        let segment = |id, tokens| Segment { id, tokens };
        Some(Arrival {
            at: self.at,
            prompt: Prompt::new([segment(prefix, 6_000), segment(own, 2_000)]),
            output: 300,
            answer: own + 1,
            session: self.made,
            prefix: Some(prefix),
        })
    }

    fn follow(&mut self, _session: u64, _ended: Duration) -> Option<Arrival> {
        None
    }

    fn len_hint(&self) -> Option<u64> {
        Some(self.requests)
    }
}

/// `warmpath plan --preset llama-3.3-70b-h200`.
fn engine(block_size: u32) -> model::Settings {
    model::Settings {
        block_size: BlockSize::new(block_size).unwrap(),
        blocks: 558_124 / block_size as usize,
        lower_blocks: 0,
        lower_describes: false,
        load_per_token: Duration::ZERO,
        max_num_seqs: 256,
        max_num_batched_tokens: 8_192,
        max_model_len: 131_072,
        step_base: Duration::ZERO,
        prefill_per_token: Duration::from_nanos(71_300),
        decode_per_step: Duration::from_micros(9_800),
        decode_ns_per_context_token: 45.5,
        answer_tokens: 300,
        vocabulary: Arc::from([0]),
        seed: 0,
    }
}

/// Processor time of this process, as Linux accounts it.
fn processor_time() -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap();
    Duration::from_nanos(stat.split(' ').next().unwrap().parse().unwrap())
}

fn main() {
    let requests = std::env::var("SIMULATE_REQUESTS").map_or(50_000, |n| n.parse().unwrap());
    let mut load = Reference {
        rng: fastrand::Rng::with_seed(1),
        at: Duration::ZERO,
        made: 0,
        requests,
    };
    let block_size = std::env::var("SIMULATE_BLOCK_SIZE").map_or(16, |n| n.parse().unwrap());
    let settings = Settings::new(20, engine(block_size));
    let before = processor_time();
    let outcome = fleet::run(&settings, &mut load, &mut LeastPrefill, 1, &mut |_| {}).unwrap();
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
