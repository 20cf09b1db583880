//! What does the whole way of a request cost, from its body to its booking, and which step how much of it?
//!
//! `cargo bench --profile quick --bench pick`. The reference load: chats of 8,000 tokens (32 KB) whose first 6,000 are
//! one of 200 system prompts, over 10, 100 and 256 endpoints, 64 requests in flight; once with endpoints that publish
//! KV events and once with the approximate index. Measured is processor time of all threads, so that a busy machine
//! counts less.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    reason = "a bench stops at the first thing that is wrong, and says what it measures"
)]

use std::collections::VecDeque;
use std::hint::black_box;
use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::measurement::{Measurement, ValueFormatter, WallTime};
use criterion::{BatchSize, BenchmarkId, Criterion, criterion_group, criterion_main};
use serde_json::json;
use warmpath::routing::block::{BlockSize, Scope, Sequence, prompt_keys};
use warmpath::routing::cache::{CacheView, FeedState};
use warmpath::routing::cost::Tiers;
use warmpath::routing::endpoint::{Endpoint, EndpointName, Report, ReportOutcome};
use warmpath::routing::event::{EngineHash, KvEvent, Medium, Stored};
use warmpath::routing::index::PrefixIndex;
use warmpath::routing::model::{Model, ModelFiles, RenderContext};
use warmpath::routing::request::{Api, Content, Request};
use warmpath::routing::router::{Ask, Decision, Policy, Router, Settings};
use warmpath::routing::tokens::TokenCount;

const PREFIXES: usize = 200;
const PREFIX_TOKENS: usize = 6_000;
const TAIL_TOKENS: usize = 2_000;
const IN_FLIGHT: usize = 64;
const FLEETS: [u16; 3] = [10, 100, 256];

/// Processor time of this process, as Linux accounts it.
struct ProcessorTime;

impl ProcessorTime {
    fn now() -> Duration {
        let threads = std::fs::read_dir("/proc/self/task").unwrap();
        let nanoseconds = threads.filter_map(|thread| {
            let stat = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
            stat.split(' ').next()?.parse::<u64>().ok()
        });
        Duration::from_nanos(nanoseconds.sum())
    }
}

impl Measurement for ProcessorTime {
    type Intermediate = Duration;
    type Value = Duration;

    fn start(&self) -> Duration {
        Self::now()
    }
    fn end(&self, start: Duration) -> Duration {
        Self::now().saturating_sub(start)
    }
    fn add(&self, left: &Duration, right: &Duration) -> Duration {
        *left + *right
    }
    fn zero(&self) -> Duration {
        Duration::ZERO
    }
    fn to_f64(&self, value: &Duration) -> f64 {
        value.as_nanos() as f64
    }
    fn formatter(&self) -> &dyn ValueFormatter {
        WallTime.formatter()
    }
}

/// The model, the shared prompts, and an endless supply of requests.
struct Traffic {
    model: Arc<Model>,
    prefixes: Vec<String>,
    rng: fastrand::Rng,
}

impl Traffic {
    fn new() -> Self {
        let mut rng = fastrand::Rng::with_seed(7);
        let prefixes = (0..PREFIXES).map(|_| text(PREFIX_TOKENS, &mut rng));
        Self {
            prefixes: prefixes.collect(),
            model: Arc::new(model()),
            rng,
        }
    }

    /// A request with some shared prompt and a question of its own.
    fn body(&mut self) -> Vec<u8> {
        let prefix = self.rng.usize(..PREFIXES);
        let question = text(TAIL_TOKENS, &mut self.rng);
        chat(&self.prefixes[prefix], &question)
    }

    fn tokens(&self, body: &[u8]) -> Vec<u32> {
        let request = Request::parse(Api::Chat, body).unwrap();
        let context = RenderContext::default();
        self.model.sequences(&request, &context).unwrap().remove(0)
    }
}

/// Words as prompts have them; about one token each.
fn text(tokens: usize, rng: &mut fastrand::Rng) -> String {
    const WORDS: [&str; 24] = [
        "the", "customer", "asked", "for", "a", "refund", "of", "order", "and", "support", "said",
        "that", "delivery", "was", "delayed", "by", "weather", "in", "prefill", "cache", "tokens",
        "belong", "to", "requests",
    ];
    let mut text = String::new();
    for _ in 0..tokens / 2 {
        text.push_str(rng.choice(WORDS).unwrap());
        text.push(' ');
        // Numbers are a token a digit.
        text.push_str(&rng.u8(..10).to_string());
    }
    text
}

fn chat(system: &str, user: &str) -> Vec<u8> {
    let messages =
        json!([{"role": "system", "content": system}, {"role": "user", "content": user}]);
    json!({ "model": "qwen3", "stream": true, "messages": messages })
        .to_string()
        .into_bytes()
}

fn model() -> Model {
    let mut tokenizer = Vec::new();
    flate2::read::GzDecoder::new(&include_bytes!("../assets/qwen3/tokenizer.json.gz")[..])
        .read_to_end(&mut tokenizer)
        .unwrap();
    let files = ModelFiles {
        tokenizer,
        tokenizer_config: Some(include_bytes!("../assets/qwen3/tokenizer_config.json").to_vec()),
        ..ModelFiles::default()
    };
    Model::load(&files).unwrap()
}

/// How a fleet's caches are known.
#[derive(Clone, Copy)]
enum Known {
    ByEvents,
    Approximately,
}

/// A fleet on which each shared prompt lies at three endpoints, and its requests in flight.
struct Fleet {
    router: Arc<Router>,
    flying: VecDeque<Decision>,
    /// Dropping a view is not forgetting it, but it is the writer's end.
    _views: Vec<CacheView>,
    now: Instant,
}

impl Fleet {
    fn new(endpoints: u16, known: Known, traffic: &Traffic) -> Self {
        let now = Instant::now();
        let router = Router::new(Settings {
            policy: Policy::LeastPrefill,
            kv_usage_limit: 0.95,
            report_age_limit: Duration::from_secs(86_400),
            idle_report_age_limit: Duration::from_secs(86_400),
            tiers: Tiers::default(),
        });
        let prompts: Vec<Vec<u32>> = traffic
            .prefixes
            .iter()
            .map(|prefix| traffic.tokens(&chat(prefix, "")))
            .collect();
        let views = (0..endpoints).map(|n| {
            let id = router.join(Endpoint {
                name: EndpointName::new("bench", &format!("engine-{n}")),
                address: ([10, 0, (n >> 8) as u8, n as u8], 8000).into(),
                labels: Default::default(),
                incarnation: String::new(),
                rank: None,
            });
            router.set_ready(id, true);
            let report = Report {
                block_size: Some(16),
                kv_capacity: Some(TokenCount::new(307_328)),
                ..Report::default()
            };
            router.report(id, ReportOutcome::Fresh(report), now);
            let mut view = router.cache_view(id, 0);
            match known {
                Known::Approximately => view.set_feed(FeedState::Absent("none".to_owned())),
                Known::ByEvents => {
                    view.set_feed(FeedState::Live);
                    let mine = |p: &usize| {
                        (0..3).any(|k| (p * 7 + k * 3) % usize::from(endpoints) == usize::from(n))
                    };
                    for p in (0..PREFIXES).filter(mine) {
                        view.apply(&[stored(p as u128, &prompts[p])]);
                    }
                }
            }
            view
        });
        Self {
            _views: views.collect(),
            router,
            flying: VecDeque::new(),
            now,
        }
    }

    /// Picks, books, and ends the oldest request but some.
    fn pick(&mut self, sequences: &[Sequence], chance: u64) {
        let prepared = self.router.prepare(sequences, &Scope::default());
        let ask = Ask {
            subset: None,
            alternates: 0,
            now: self.now,
            chance,
        };
        let mut decision = self.router.pick(&prepared, &ask).unwrap();
        decision.reservation.prefilled(self.now);
        self.flying.push_back(decision);
        if self.flying.len() > IN_FLIGHT {
            self.flying.pop_front();
        }
    }
}

fn stored(prompt: u128, tokens: &[u32]) -> KvEvent {
    let blocks = tokens.len() / 16;
    KvEvent::Stored(Stored {
        hashes: (0..blocks as u64)
            .map(|block| EngineHash(((prompt as u64) << 32) + block))
            .collect(),
        parent: None,
        tokens: tokens[..blocks * 16].to_vec(),
        opaque_tokens: false,
        block_size: 16,
        lora_name: None,
        extras: Vec::new(),
        medium: Medium::Gpu,
        group: None,
        indexable_group: true,
    })
}

fn steps(c: &mut Criterion<ProcessorTime>) {
    let traffic = &mut Traffic::new();
    let mut group = c.benchmark_group("step");
    let body = traffic.body();
    let ids = traffic.tokens(&body);
    println!("a request: {} bytes, {} tokens", body.len(), ids.len());
    let request = Request::parse(Api::Chat, &body).unwrap();
    group.bench_function("parse", |b| {
        b.iter(|| Request::parse(Api::Chat, black_box(&body)).unwrap());
    });
    let Content::Chat(parsed) = &request.content else {
        return;
    };
    let context = RenderContext::default();
    group.bench_function("render", |b| {
        b.iter(|| traffic.model.render(black_box(parsed), &context).unwrap());
    });
    let prompt = traffic.model.render(parsed, &context).unwrap();
    group.bench_function("tokenize, warm", |b| {
        b.iter(|| traffic.model.encode(black_box(&prompt), false));
    });
    group.bench_function("tokenize, cold", |b| {
        let rng = &mut fastrand::Rng::with_seed(9);
        b.iter_batched(
            || text(PREFIX_TOKENS + TAIL_TOKENS, rng),
            |text| traffic.model.encode(&text, false),
            BatchSize::SmallInput,
        );
    });
    let size = BlockSize::DEFAULT;
    group.bench_function("hash", |b| {
        b.iter(|| prompt_keys(black_box(&ids), size, &Scope::default()));
    });
    for endpoints in FLEETS {
        let index = PrefixIndex::new();
        let keys = prompt_keys(&ids, size, &Scope::default());
        for _ in 0..endpoints {
            let source = index.open();
            let mut writer = index.write(source).unwrap();
            for &key in keys.iter().take(PREFIX_TOKENS / 16) {
                writer.store(key);
            }
        }
        group.bench_function(BenchmarkId::new("look up", endpoints), |b| {
            b.iter(|| index.lookup(black_box(&keys)));
        });
    }
    group.finish();
}

fn picks(c: &mut Criterion<ProcessorTime>) {
    let traffic = &mut Traffic::new();
    for (name, known) in [
        ("events", Known::ByEvents),
        ("approximate", Known::Approximately),
    ] {
        let mut group = c.benchmark_group(name);
        for endpoints in FLEETS {
            let mut fleet = Fleet::new(endpoints, known, traffic);
            let mut chance = 0;
            let sample: Vec<Vec<u32>> = (0..64)
                .map(|_| {
                    let body = traffic.body();
                    traffic.tokens(&body)
                })
                .collect();
            group.bench_function(
                BenchmarkId::new("hash, look up, book, end", endpoints),
                |b| {
                    b.iter_batched(
                        || {
                            chance += 1;
                            let mut ids = sample[chance as usize % sample.len()].clone();
                            // A tail of its own, as every request has.
                            ids[PREFIX_TOKENS] = chance as u32;
                            (chance, [Sequence::Tokens(ids)])
                        },
                        |(chance, sequences)| fleet.pick(&sequences, chance),
                        BatchSize::SmallInput,
                    );
                },
            );
            group.bench_function(BenchmarkId::new("from body to booking", endpoints), |b| {
                b.iter_batched(
                    || {
                        chance += 1;
                        (chance, traffic.body(), Arc::clone(&traffic.model))
                    },
                    |(chance, body, model)| {
                        let request = Request::parse(Api::Chat, &body).unwrap();
                        let context = RenderContext::default();
                        let ids = model.sequences(&request, &context).unwrap();
                        let sequences: Vec<Sequence> =
                            ids.into_iter().map(Sequence::Tokens).collect();
                        fleet.pick(&sequences, chance);
                    },
                    BatchSize::SmallInput,
                );
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default()
        .with_measurement(ProcessorTime)
        .sample_size(20)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(2));
    targets = steps, picks
}
criterion_main!(benches);
